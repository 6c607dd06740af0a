//! What an operator is shown: metrics, liveness, traces, log lines.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::Uri;

/// Where --type=liveness tells it when nothing is said: ceph-csi's port.
const LIVENESS_PORT: u16 = 8080;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// How `--type=liveness` asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Poll {
    pub(crate) every: Duration,
    pub(crate) within: Duration,
}

/// The flags of this file, checked.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    /// Where metrics are told, and by which path.
    pub(crate) metrics: Option<(SocketAddr, String)>,
    /// Some: no service, only questions to the driver at the endpoint.
    pub(crate) liveness: Option<Poll>,
    /// Where traces are sent: `http://host:port`.
    pub(crate) collector: Option<String>,
    pub(crate) log_format: LogFormat,
    pub(crate) verbosity: u8,
}

#[derive(Debug, Clone, Args)]
pub(super) struct Observing {
    /// Port for GET of the metrics; 0: none [default: 0; with --type=liveness: 8080]
    #[arg(long)]
    metricsport: Option<u16>,
    /// Path of the metrics
    #[arg(long, default_value = "/metrics")]
    metricspath: String,
    /// Address that the metrics listen on [default: all]
    #[arg(long, env = "POD_IP", default_value = "::", hide_default_value = true)]
    metricsaddress: IpAddr,
    /// With --type=liveness: how often the driver is asked whether it is ready
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    polltime: Duration,
    /// With --type=liveness: a driver that has not answered within this is down
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Collector of traces, http://host:port, by OTLP over gRPC; empty: nothing is traced
    #[arg(long, default_value = "", hide_default_value = true)]
    otlp_endpoint: String,
    /// Log lines for people or for machines
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Verbosity, klog's scale: 0 to 3 info, 4 and 5 debug (each command), 6 and more trace
    #[arg(short, long = "v", default_value_t = 0)]
    v: u8,
}

impl Observing {
    pub(super) fn validate(&self, liveness: bool) -> Result<Shown, String> {
        Ok(Shown {
            metrics: self.metrics(liveness)?,
            liveness: liveness.then(|| self.poll()).transpose()?,
            collector: self.collector()?,
            log_format: self.log_format,
            verbosity: self.v,
        })
    }

    fn metrics(&self, liveness: bool) -> Result<Option<(SocketAddr, String)>, String> {
        if !self.metricspath.starts_with('/') || self.metricspath.contains(['{', '}', '*']) {
            return Err(format!("--metricspath={}: a path begins with '/'", self.metricspath));
        }
        let port = self.metricsport.unwrap_or(if liveness { LIVENESS_PORT } else { 0 });
        if liveness && port == 0 {
            return Err("--metricsport=0: --type=liveness tells nothing but a metric: give a port".to_owned());
        }
        let address = SocketAddr::new(self.metricsaddress, port);
        Ok((port > 0).then(|| (address, self.metricspath.clone())))
    }

    fn collector(&self) -> Result<Option<String>, String> {
        let text = self.otlp_endpoint.trim_end_matches('/');
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = text.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"));
        if !parsed.is_some_and(|uri| uri.port().is_some() && uri.path() == "/") {
            return Err(format!(
                "--otlp-endpoint={}: give http://host:port, where a collector takes OTLP over gRPC (its usual port is 4317); \
                 TLS is not built, a collector on the node or beside the driver can add it",
                self.otlp_endpoint
            ));
        }
        Ok(Some(text.to_owned()))
    }

    fn poll(&self) -> Result<Poll, String> {
        for (flag, value) in [("--polltime", self.polltime), ("--timeout", self.timeout)] {
            if value.is_zero() {
                return Err(format!("{flag}=0s: give more than nothing"));
            }
        }
        Ok(Poll { every: self.polltime, within: self.timeout })
    }
}
