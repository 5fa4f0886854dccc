//! Where snapshots go: the server, and what the flags say of their place. `push`, `watch` and `agent` share it.

use std::{env, num::NonZeroU64, path::PathBuf};

use clap::{Args, builder::FalseyValueParser};
use tidegauge_api::{
    Place, Sidecar,
    from_path::{place_from_path, run_from_path},
    sidecar,
};
use tidegauge_capture_agent::{
    connection::{AddressError, Connection, DEFAULT_SERVER, Token},
    proxies::Proxies,
    push::Server,
};

use crate::parcel::Parcel;

/// How the server is reached. Proxies are those of the usual variables.
#[derive(Debug, Clone, Args)]
pub(crate) struct Reach {
    /// The server
    #[arg(long, value_name = "URL", env = "TIDEGAUGE_SERVER", default_value = DEFAULT_SERVER)]
    server: String,
    /// The server's token
    #[arg(long, env = "TIDEGAUGE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file with the server's token, read again when the server does not know it any more
    #[arg(long, value_name = "FILE", env = "TIDEGAUGE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Certificates that vouch for the server instead of the well-known ones, PEM
    #[arg(long, value_name = "FILE", env = "TIDEGAUGE_CA")]
    ca: Option<PathBuf>,
    /// A certificate that vouches for us, with its chain, PEM
    #[arg(long, value_name = "FILE", env = "TIDEGAUGE_CLIENT_CERT")]
    client_cert: Option<PathBuf>,
    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", env = "TIDEGAUGE_CLIENT_KEY")]
    client_key: Option<PathBuf>,
    /// The most that is sent, bytes a second
    #[arg(long, value_name = "BYTES", env = "TIDEGAUGE_RATE")]
    rate: Option<NonZeroU64>,
    /// Send unencrypted to another machine
    #[arg(long, env = "TIDEGAUGE_INSECURE", value_parser = FalseyValueParser::new())]
    insecure: bool,
}

impl Reach {
    /// # Errors
    /// When the address is none, what is sent would be readable on its way, or a certificate cannot be used.
    pub(crate) fn server(&self) -> Result<Server, AddressError> {
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let token = self.token.clone().filter(|token| !token.is_empty());
        Server::connect(&Connection {
            // As clap has it, a flag may come from a variable: of the two the file is the one to keep to.
            token: match (given(&self.token_file), token) {
                (Some(file), _) => Token::File(file),
                (None, Some(token)) => Token::Given(token),
                (None, None) => Token::None,
            },
            insecure: self.insecure,
            ca: given(&self.ca),
            client: match (given(&self.client_cert), given(&self.client_key)) {
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (None, None) => None,
                _ => return Err(AddressError::HalfACertificate),
            },
            proxies: Proxies::from_env(&|name| env::var(name).ok()),
            rate: self.rate,
            ..Connection::to(&self.server)
        })
    }
}

/// A server and a place. What a flag says wins over the sidecar beside a snapshot, and that over its path.
#[derive(Debug, Clone, Args)]
pub(crate) struct Destination {
    #[command(flatten)]
    reach: Reach,
    /// Name of the run
    #[arg(long, value_name = "NAME", env = "TIDEGAUGE_RUN")]
    run: Option<String>,
    /// What the processes do in the run: actor, critic
    // In verl's finish_hook_cmd, verl says it.
    #[arg(long, env = "VERL_PROFILE_ROLE")]
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
}

impl Destination {
    /// # Errors
    /// As [`Reach::server`] has them.
    pub(crate) fn server(&self) -> Result<Server, AddressError> {
        self.reach.server()
    }

    /// What travels beside a parcel. Without a run in it, the parcel cannot be sent.
    pub(crate) fn sidecar(&self, parcel: &Parcel<'_>) -> Sidecar {
        let beside = parcel.sidecar.clone();
        let from_path = place_from_path(&parcel.path).map(|told| told.place).unwrap_or_default();
        let flags = Place {
            run: self.run.clone().filter(|run| !run.is_empty()),
            role: self.role.clone().filter(|role| !role.is_empty()),
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
