//! Proxies, as the usual variables name them.
//!
//! `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, and the same in lower case, which win: that is what curl
//! and most other programs do. This machine is never reached through a proxy.

use std::net::IpAddr;

use crate::connection::is_loopback;

/// Through whom servers are reached.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    https: Option<String>,
    http: Option<String>,
    no_proxy: Vec<String>,
}

/// A proxy that cannot be used. Its address may hold a password and is not in the sentence.
#[derive(Debug, thiserror::Error)]
#[error("the proxy in {0} cannot be used: its address must look like http://proxy:3128")]
pub struct ProxyError(&'static str);

impl Proxies {
    /// As the environment names them.
    pub fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Self {
        let set = |names: [&str; 2]| {
            names.into_iter().find_map(|name| env(name).filter(|value| !value.trim().is_empty()))
        };
        let all = || set(["all_proxy", "ALL_PROXY"]);
        let no_proxy = set(["no_proxy", "NO_PROXY"]).unwrap_or_default();
        Self {
            https: set(["https_proxy", "HTTPS_PROXY"]).or_else(all),
            http: set(["http_proxy", "HTTP_PROXY"]).or_else(all),
            no_proxy: no_proxy
                .split([',', ' '])
                .filter(|entry| !entry.is_empty())
                .map(str::to_owned)
                .collect(),
        }
    }

    /// The one for a server.
    pub(crate) fn of(&self, scheme: &str, host: &str) -> Result<Option<ureq::Proxy>, ProxyError> {
        let (proxy, name) = match scheme {
            "https" => (&self.https, "HTTPS_PROXY"),
            _ => (&self.http, "HTTP_PROXY"),
        };
        let Some(proxy) = proxy.as_deref().filter(|_| !self.is_excepted(host)) else { return Ok(None) };
        match ureq::Proxy::new(proxy.trim()) {
            Ok(proxy) => Ok(Some(proxy)),
            Err(_) => Err(ProxyError(name)),
        }
    }

    /// Entries are a name (and with it all names below), an address, a network "10.0.0.0/8", or "*".
    fn is_excepted(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        if is_loopback(&host) {
            return true;
        }
        let address: Option<IpAddr> = host.parse().ok();
        self.no_proxy.iter().any(|entry| match (entry.split_once('/'), address) {
            (Some((network, bits)), Some(address)) => is_within(address, network, bits).unwrap_or(false),
            _ if entry == "*" => true,
            _ => {
                let name = entry.trim_start_matches('*').trim_start_matches('.').to_ascii_lowercase();
                host == name || (!name.is_empty() && host.ends_with(&format!(".{name}")))
            }
        })
    }
}

/// A proxy's address may hold a password.
impl std::fmt::Debug for Proxies {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Proxies")
            .field("https", &self.https.is_some())
            .field("http", &self.http.is_some())
            .field("no_proxy", &self.no_proxy)
            .finish()
    }
}

fn is_within(address: IpAddr, network: &str, bits: &str) -> Option<bool> {
    let (network, bits): (IpAddr, u32) = (network.parse().ok()?, bits.parse().ok()?);
    // The bits behind the prefix do not count.
    let prefix = |address: IpAddr| match address {
        IpAddr::V4(v4) => Some(u128::from(v4.to_bits()).checked_shr(32_u32.checked_sub(bits)?).unwrap_or(0)),
        IpAddr::V6(v6) => Some(v6.to_bits().checked_shr(128_u32.checked_sub(bits)?).unwrap_or(0)),
    };
    Some(address.is_ipv4() == network.is_ipv4() && prefix(address)? == prefix(network)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(env: &[(&str, &str)], scheme: &str, host: &str) -> Option<String> {
        let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Proxies::from_env(&env).of(scheme, host).unwrap().map(|proxy| proxy.host().to_owned())
    }

    #[test]
    fn each_scheme_has_its_variable_lower_case_wins_and_all_proxy_is_for_the_rest() {
        let env = [("HTTPS_PROXY", "http://s:1"), ("https_proxy", "http://t:1"), ("ALL_PROXY", "http://a:1")];
        assert_eq!(proxy(&env, "https", "gauge").as_deref(), Some("t"));
        assert_eq!(proxy(&env, "http", "gauge").as_deref(), Some("a"));
        assert_eq!(proxy(&env[..1], "http", "gauge"), None);
        assert_eq!(proxy(&[("HTTP_PROXY", "h:3128")], "http", "gauge").as_deref(), Some("h"));
    }

    #[test]
    fn this_machine_and_what_is_excepted_are_reached_directly() {
        let no_proxy = "internal, .corp.example,10.0.0.0/8, 192.168.1.7,fd00::/8";
        let env = [("http_proxy", "http://p:1"), ("NO_PROXY", no_proxy)];
        let direct =
            ["localhost", "127.0.0.1", "[::1]", "internal", "a.internal", "INTERNAL", "x.corp.example"];
        for host in direct.into_iter().chain(["10.200.3.4", "192.168.1.7", "[fd12::1]"]) {
            assert_eq!(proxy(&env, "http", host), None, "{host}");
        }
        for host in ["gauge", "notinternal", "corp.example.org", "11.0.0.1", "192.168.1.8", "[fe80::1]"] {
            assert!(proxy(&env, "http", host).is_some(), "{host}");
        }
        assert_eq!(proxy(&[("http_proxy", "http://p:1"), ("no_proxy", "*")], "http", "gauge"), None);
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_named_by_its_variable_and_not_printed() {
        let env = |name: &str| (name == "HTTPS_PROXY").then(|| "gopher://me:hunter2@p".to_owned());
        let error = Proxies::from_env(&env).of("https", "gauge").unwrap_err().to_string();
        assert!(error.starts_with("the proxy in HTTPS_PROXY cannot be used") && !error.contains("hunter2"));
        assert!(!format!("{:?}", Proxies::from_env(&env)).contains("hunter2"));
    }
}
