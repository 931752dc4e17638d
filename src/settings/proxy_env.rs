//! Reads the proxies from the environment, or else from the node's proxy.env, or else from the cluster's Proxy.
//!
//! `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, upper case before lower case, as Go programs read them. The Machine Config
//! Operator writes the same variables for the node's services, including CRI-O, into [`NODE_PROXY`]; that file is used only
//! if the environment has none of them. TALM's Job does not mount that file; the cluster's Proxy has the same values. An
//! invalid proxy of the cluster is a warning, as everything from the API is optional.

use std::collections::HashMap;
use std::env;
use std::path::PathBuf;

use secrecy::{ExposeSecret as _, SecretString};

use crate::cluster::ClusterProxy;
use crate::registry::{ConfText, NoProxy, Proxies, Proxy};

use super::SettingsError;
use super::host_root::HostRoot;

/// The variables of the node's services, in the format of systemd's `EnvironmentFile`.
const NODE_PROXY: &str = "etc/mco/proxy.env";

/// The names of each variable, in the order in which they are tried.
const HTTP: [&str; 2] = ["HTTP_PROXY", "http_proxy"];
const HTTPS: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const NO: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The proxies of a run.
pub(super) fn proxies(host: &HostRoot, cluster: Option<&ClusterProxy>) -> Result<Proxies, SettingsError> {
    let names = || [HTTP, HTTPS, NO].into_iter().flatten();
    let set = names().filter_map(|name| {
        let value = env::var_os(name).filter(|value| !value.is_empty())?;
        Some((name.to_owned(), value.to_string_lossy().into_owned()))
    });
    let mut variables = Variables {
        values: set.collect(),
        origin: Origin::Environment,
    };
    if variables.values.is_empty()
        && let Some(ConfText { path, text }) = host.file(NODE_PROXY)?
    {
        variables.values = assignments(&text)
            .filter(|(name, value)| names().any(|known| known == name) && !value.is_empty())
            .collect();
        variables.origin = Origin::File(path);
    }
    if variables.values.is_empty()
        && let Some(cluster) = cluster
    {
        return Ok(of_cluster(cluster).proxies().unwrap_or_else(|error| {
            tracing::warn!("continuing without the cluster's proxy: {error}");
            Proxies::default()
        }));
    }
    variables.proxies()
}

/// The same variables, as the Machine Config Operator sets them from the cluster's Proxy.
fn of_cluster(proxy: &ClusterProxy) -> Variables {
    let url = |url: &Option<SecretString>| url.as_ref().map(|url| url.expose_secret().to_owned());
    let except = (!proxy.except.is_empty()).then(|| proxy.except.clone());
    let values = [
        (HTTP[0], url(&proxy.http)),
        (HTTPS[0], url(&proxy.https)),
        (NO[0], except),
    ];
    let set = values.into_iter();
    Variables {
        values: set
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect(),
        origin: Origin::Cluster,
    }
}

/// Where the variables are set.
enum Origin {
    Environment,
    File(PathBuf),
    Cluster,
}

/// The variables that are set and not empty.
struct Variables {
    values: HashMap<String, String>,
    origin: Origin,
}

impl Variables {
    fn proxies(&self) -> Result<Proxies, SettingsError> {
        let except = self.first(NO).map_or("", |(_, value)| value);
        let proxies = Proxies {
            http: self.proxy(HTTP)?,
            https: self.proxy(HTTPS)?,
            except: NoProxy::parse(except),
        };
        for (scheme, proxy) in [("HTTP", &proxies.http), ("HTTPS", &proxies.https)] {
            let Some(proxy) = proxy else { continue };
            let origin = match &self.origin {
                Origin::Environment => "the environment".to_owned(),
                Origin::File(path) => format!("`{}`", path.display()),
                Origin::Cluster => "the cluster's Proxy".to_owned(),
            };
            let exceptions = match except {
                "" => String::new(),
                list => format!(", except for `NO_PROXY`: {}", list.escape_debug()),
            };
            tracing::info!("{scheme} requests use the proxy `{proxy}` of {origin}{exceptions}");
        }
        Ok(proxies)
    }

    fn proxy(&self, names: [&'static str; 2]) -> Result<Option<Proxy>, SettingsError> {
        let Some((name, value)) = self.first(names) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(proxy) => Ok(Some(proxy)),
            Err(source) => Err(SettingsError::Proxy {
                name,
                file: match &self.origin {
                    Origin::File(path) => Some(path.clone()),
                    Origin::Environment | Origin::Cluster => None,
                },
                source,
            }),
        }
    }

    fn first(&self, names: [&'static str; 2]) -> Option<(&'static str, &str)> {
        let mut set = names
            .into_iter()
            .filter_map(|name| Some((name, self.values.get(name)?.as_str())));
        set.next()
    }
}

/// Names and values of an environment file; of a repeated name the last value is used.
fn assignments(text: &str) -> impl Iterator<Item = (String, String)> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.starts_with(['#', ';']));
    lines.filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        let value = value.trim();
        let unquoted = ['"', '\'']
            .into_iter()
            .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
        Some((name.trim().to_owned(), unquoted.unwrap_or(value).to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_file_is_read_as_by_systemd() {
        let text = "# HTTP_PROXY=http://no\n\n; no\nHTTP_PROXY=http://first\n  HTTPS_PROXY = \"http://a b=c\" \r\n\
                    NO_PROXY='x,y'\nHTTP_PROXY=http://user:100%25@last\nnonsense\n";
        let read: HashMap<String, String> = assignments(text).collect();
        let of = |name: &str| read.get(name).map(String::as_str);
        assert_eq!(of("HTTP_PROXY"), Some("http://user:100%25@last"));
        assert_eq!(of("HTTPS_PROXY"), Some("http://a b=c"));
        assert_eq!(of("NO_PROXY"), Some("x,y"));
        assert_eq!(read.len(), 3);
    }

    #[test]
    fn upper_case_is_preferred_and_http_proxy_is_not_used_for_https() {
        let values = [
            ("HTTP_PROXY", "big:1"),
            ("http_proxy", "small:1"),
            ("no_proxy", "a"),
        ];
        let variables = Variables {
            values: values.map(|(name, value)| (name.into(), value.into())).into(),
            origin: Origin::Environment,
        };
        let proxies = variables.proxies().expect("they are right");
        assert_eq!(
            proxies.http.map(|it| it.to_string()).as_deref(),
            Some("http://big:1")
        );
        assert!(proxies.https.is_none());
    }

    #[test]
    fn an_invalid_proxy_is_named_without_its_value() {
        let values = [("https_proxy", "socks5://me:hunter2@proxy")];
        let variables = Variables {
            values: values.map(|(name, value)| (name.into(), value.into())).into(),
            origin: Origin::File("/host/etc/mco/proxy.env".into()),
        };
        let error = variables.proxies().expect_err("it is SOCKS");
        assert_eq!(
            error.to_string(),
            "cannot use the proxy of `https_proxy` in `/host/etc/mco/proxy.env`: only proxies by `http://` and \
             `https://` are supported"
        );
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}
