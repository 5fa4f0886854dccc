"""Stands for torch.optim."""
