//! Where snapshots go: the server, and what the flags say of their place. `push` and `watch` share it.

use clap::{Args, builder::FalseyValueParser};
use tidegauge_api::{
    Place, Sidecar,
    from_path::{place_from_path, run_from_path},
    sidecar,
};
use tidegauge_capture_agent::push::{AddressError, DEFAULT_SERVER, Server};

use crate::parcel::Parcel;

/// A server and a place. What a flag says wins over the sidecar beside a snapshot, and that over its path.
#[derive(Debug, Clone, Args)]
pub(crate) struct Destination {
    /// The server
    #[arg(long, value_name = "URL", env = "TIDEGAUGE_SERVER", default_value = DEFAULT_SERVER)]
    server: String,
    /// The server's token
    #[arg(long, env = "TIDEGAUGE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Name of the run
    #[arg(long, value_name = "NAME", env = "TIDEGAUGE_RUN")]
    run: Option<String>,
    /// What the processes do in the run: actor, critic
    #[arg(long)]
    role: Option<String>,
    /// Global rank
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// The step at whose end the snapshot was taken
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// The first step whose events it holds
    #[arg(long, value_name = "N")]
    first_step: Option<u64>,
    /// Send the token unencrypted to another machine
    #[arg(long, env = "TIDEGAUGE_INSECURE", value_parser = FalseyValueParser::new())]
    insecure: bool,
}

impl Destination {
    /// # Errors
    /// When the address is none, or the token would be readable on its way.
    pub(crate) fn server(&self) -> Result<Server, AddressError> {
        let token = self.token.as_deref().filter(|token| !token.is_empty());
        Server::new(&self.server, token, self.insecure)
    }

    /// What travels beside a parcel. Without a run in it, the parcel cannot be sent.
    pub(crate) fn sidecar(&self, parcel: &Parcel<'_>) -> Sidecar {
        let beside = parcel.sidecar.clone();
        let from_path = place_from_path(&parcel.path).map(|told| told.place).unwrap_or_default();
        let flags = Place {
            run: self.run.clone().filter(|run| !run.is_empty()),
            role: self.role.clone(),
            rank: self.rank,
            first_step: self.first_step,
            last_step: self.step,
            ..Place::default()
        };
        let mut place = flags.or(beside.place).or(from_path);
        place.run = place.run.or_else(|| run_from_path(&parcel.path));
        Sidecar { sidecar: sidecar::VERSION, place, ..beside }
    }
}
