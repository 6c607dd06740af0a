//! The flags of ceph-csi that are none of ours, and the way Go spells flags.

use std::ffi::OsString;

/// Flags of ceph-csi that have no meaning here, and whether they are switches: each is accepted with one warning, so
/// that its manifests work.
const IGNORED: &[(&str, Switch)] = &[
    ("alsologtostderr", Switch(true)),
    ("automaxprocs", Switch(true)),
    ("drivernamespace", Switch(false)),
    ("enableprofiling", Switch(true)),
    ("feature-gates", Switch(false)),
    ("forcecephkernelclient", Switch(true)),
    ("fusemountoptions", Switch(false)),
    ("kernelmountoptions", Switch(false)),
    ("log_file", Switch(false)),
    ("logtostderr", Switch(true)),
    ("pluginpath", Switch(false)),
    ("radosnamespacecephfs", Switch(false)),
    ("setmetadata", Switch(true)),
    ("skipforceflatten", Switch(true)),
    ("stagingpath", Switch(false)),
];

/// A switch takes its value, if any, behind `=`; another flag takes the next word too.
#[derive(Clone, Copy)]
struct Switch(bool);

/// Takes the ignored flags of ceph-csi out of the arguments, with a warning for each.
pub(super) fn without_ignored(args: impl Iterator<Item = OsString>) -> (Vec<OsString>, Vec<String>) {
    let (mut kept, mut warnings, mut args) = (Vec::new(), Vec::new(), args);
    while let Some(arg) = args.next() {
        let text = arg.to_str().and_then(|text| text.strip_prefix("--")).unwrap_or_default();
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        if let Some((_, Switch(switch))) = IGNORED.iter().find(|(ignored, _)| *ignored == name) {
            warnings.push(format!("--{name} has no meaning in this driver and is ignored"));
            (!switch && value.is_none()).then(|| args.next());
        } else {
            kept.push(arg);
        }
    }
    (kept, warnings)
}

/// Go's `flag` takes one dash or two, clap's long flags two: `-nodeid=x` becomes `--nodeid=x`.
pub(super) fn go_spelling(arg: OsString) -> OsString {
    let Some(text) = arg.to_str() else { return arg };
    let name = text.strip_prefix('-').unwrap_or_default();
    let single = !name.starts_with('-') && name.split('=').next().is_some_and(|name| name.len() > 1);
    let verbosity = name.starts_with("v=");
    if (single || verbosity) && name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return format!("--{name}").into();
    }
    arg
}
