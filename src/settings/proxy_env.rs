//! Proxies as the environment sets them, or the node if it sets none, or the cluster if neither does.
//!
//! `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, in capitals before small letters, as Go's programs read them. The Machine
//! Config Operator writes the same variables for the node's services, CRI-O among them, into [`NODE_PROXY`]; that file counts
//! only where our own environment has none of them, for whoever sets one means it. TALM's Job mounts no such file; the
//! cluster's Proxy has the same values. One of those that cannot be used is gone without, as everything from there is.

use std::collections::HashMap;
use std::env;
use std::path::PathBuf;

use secrecy::{ExposeSecret as _, SecretString};

use crate::cluster::ClusterProxy;
use crate::registry::{NoProxy, Proxies, Proxy};

use super::SettingsError;
use super::host_root::HostRoot;

/// The variables of the node's services, in the form of systemd's `EnvironmentFile`.
const NODE_PROXY: &str = "etc/mco/proxy.env";

/// Each in the order in which it is looked for.
const HTTP: [&str; 2] = ["HTTP_PROXY", "http_proxy"];
const HTTPS: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const NO: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// What is reached through which proxy.
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
        && let Some((path, text)) = host.file(NODE_PROXY)?
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
            tracing::warn!("going on without the cluster's proxy: {error}");
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

/// Who sets them.
enum Origin {
    Environment,
    File(PathBuf),
    Cluster,
}

/// Those that are set and not empty.
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
            let place = match &self.origin {
                Origin::Environment => "the environment".to_owned(),
                Origin::File(path) => format!("`{}`", path.display()),
                Origin::Cluster => "the cluster's Proxy".to_owned(),
            };
            let but = match except {
                "" => String::new(),
                list => format!(", but not what `NO_PROXY` lists: {}", list.escape_debug()),
            };
            tracing::info!("{scheme} goes through proxy `{proxy}`, as {place} says{but}");
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

/// Names and values of an environment file; the last of a name counts when they are collected.
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
    fn an_environment_file_is_read_as_systemd_reads_it() {
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
    fn capitals_come_first_and_http_is_not_for_https() {
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
    fn a_bad_one_is_named_and_not_repeated() {
        let values = [("https_proxy", "socks5://me:hunter2@proxy")];
        let variables = Variables {
            values: values.map(|(name, value)| (name.into(), value.into())).into(),
            origin: Origin::File("/host/etc/mco/proxy.env".into()),
        };
        let error = variables.proxies().expect_err("it is SOCKS");
        assert_eq!(
            error.to_string(),
            "cannot use the proxy that `https_proxy` in `/host/etc/mco/proxy.env` names: only proxies by `http://` and \
             `https://` are supported"
        );
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}
