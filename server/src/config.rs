//! Every setting: flag, environment variable, default, sentence.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail};

/// Receives, catalogs and serves memory snapshots.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "tidegauge-server", version, about)]
pub struct Config {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, env = "TIDEGAUGE_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:8642")]
    pub listen: SocketAddr,

    /// Folder for everything that is kept [default: tidegauge in $XDG_DATA_HOME or ~/.local/share]
    #[arg(long, env = "TIDEGAUGE_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Secret that callers must send; without one anybody who reaches the address may push and look
    #[arg(long, env = "TIDEGAUGE_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,

    /// Listen on an address that others can reach, without a token
    #[arg(long, env = "TIDEGAUGE_INSECURE")]
    pub insecure: bool,

    /// Largest upload, in bytes or as 500MiB, 4GiB
    #[arg(long, env = "TIDEGAUGE_MAX_UPLOAD_BYTES", value_name = "SIZE", default_value = "4GiB", value_parser = size)]
    pub max_upload_bytes: u64,

    /// Most that the data folder may hold; a further upload is refused [default: no limit]
    #[arg(long, env = "TIDEGAUGE_MAX_DATA_BYTES", value_name = "SIZE", value_parser = size)]
    pub max_data_bytes: Option<u64>,

    /// Free space to leave on the disk; an upload that would take it is refused
    #[arg(long, env = "TIDEGAUGE_MIN_FREE_BYTES", value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub min_free_bytes: u64,

    /// Snapshots read at the same time; each takes memory of about four times its decompressed size at most
    #[arg(long, env = "TIDEGAUGE_READERS", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    pub readers: u32,

    /// Folder with the dashboard's files [default: site, beside this program]
    #[arg(long, env = "TIDEGAUGE_SITE", value_name = "DIR")]
    pub site: Option<PathBuf>,
}

impl Config {
    /// The token, if one is set; an empty one is none.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref().map(str::trim).filter(|token| !token.is_empty())
    }

    /// Refuses to be reachable by others without a token, unless told so.
    pub fn check(&self) -> anyhow::Result<()> {
        if !self.listen.ip().is_loopback() && self.token().is_none() && !self.insecure {
            bail!(
                "{} can be reached by others: set a token with --token or TIDEGAUGE_TOKEN, or say --insecure to let \
                 anybody push and look",
                self.listen
            );
        }
        Ok(())
    }

    /// The data folder.
    pub fn data(&self) -> anyhow::Result<PathBuf> {
        if let Some(data) = &self.data {
            return Ok(data.clone());
        }
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute("XDG_DATA_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
            .map(|base| base.join("tidegauge"))
            .context("neither XDG_DATA_HOME nor HOME names a folder; say where to keep things with --data")
    }

    /// The folder with the dashboard's files, if there is one.
    pub fn site(&self) -> Option<PathBuf> {
        self.site.clone().or_else(|| {
            let beside = std::env::current_exe().ok()?.parent()?.join("site");
            beside.is_dir().then_some(beside)
        })
    }
}

/// Bytes from "1048576", "512KiB", "4 GiB"; the units are powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 9] = [
        ("KiB", 10),
        ("MiB", 20),
        ("GiB", 30),
        ("TiB", 40),
        ("K", 10),
        ("M", 20),
        ("G", 30),
        ("T", 40),
        ("B", 0),
    ];
    let text = text.trim();
    let (number, shift) = UNITS
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .unwrap_or((text, 0));
    let number: u64 = number
        .trim()
        .parse()
        .map_err(|_not_a_number| format!("expected a size such as 1048576 or 4GiB, found {text:?}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is more than a file can hold"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        assert_eq!(size("4GiB"), Ok(4 << 30));
        assert_eq!(size(" 512 KiB "), Ok(512 << 10));
        assert_eq!(size("17"), Ok(17));
        assert!(size("4GB ").unwrap_err().contains("4GiB"));
        assert!(size("99999999999TiB").is_err());
    }

    #[test]
    fn an_address_that_others_reach_needs_a_token_or_a_word() {
        let config = |args: &[&str]| Config::parse_from([&["tidegauge-server"], args].concat());
        let open = ["--listen", "0.0.0.0:8642"];
        assert!(config(&["--listen", "[::1]:8642"]).check().is_ok());
        assert!(config(&open).check().unwrap_err().to_string().contains("--insecure"));
        assert!(config(&[&open[..], &["--token", " "]].concat()).check().is_err());
        assert!(config(&[&open[..], &["--token", "secret"]].concat()).check().is_ok());
        assert!(config(&[&open[..], &["--insecure"]].concat()).check().is_ok());
    }
}
