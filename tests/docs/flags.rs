//! The flags of the documents are those of `--help`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::pages::{configuration, pages};
use crate::source::{between, list};

/// Flags of other programs that a document names by themselves.
const OTHERS: &[&str] = &[
    "--disable-force-detach-on-timeout",
    "--extra-create-metadata",
    "--help",
    "--immediate-topology",
    "--include-ignored",
    "--kill-file",
    "--node-deployment",
    "--previous",
    "--tag",
    "--target",
    "--timestamp",
];

/// Of a flag: its variable and its default; empty where there is none.
type About = (String, String);

#[test]
fn the_table_of_flags_is_what_help_says() {
    let rows = configuration().rows("## Flags").into_iter();
    let flag = |cells: Vec<String>| (cells[0].clone(), (cells[2].clone(), cells[1].clone()));
    assert_eq!(rows.map(flag).collect::<BTreeMap<_, _>>(), flags_of_help(&help(&[])));
}

#[test]
fn flags_that_are_ignored_are_named() {
    assert_eq!(configuration().bullet("Flags ignored:"), ignored());
}

#[test]
fn every_flag_that_a_document_names_exists() {
    let helps = [help(&[]), help(&["journal"]), help(&["audit"])];
    let own = helps.iter().flat_map(|help| flags_of_help(help).into_keys()).chain(ignored());
    let known: BTreeSet<String> = own.chain(OTHERS.iter().map(|&name| name.to_owned())).collect();
    let mut unknown = Vec::new();
    for page in pages() {
        let flags = page.spans().into_iter().filter(|code| code.starts_with("--") && code.len() > 2);
        let names = flags.map(|code| code.split(['=', ' ', '[']).next().unwrap_or_default().to_owned());
        unknown.extend(
            names.filter(|name| !known.contains(name)).map(|name| format!("{}: {name}", page.path.display())),
        );
    }
    assert!(unknown.is_empty(), "neither in --help nor flags of other programs: {unknown:#?}");
}

#[test]
fn help_is_read_as_clap_writes_it() {
    let text = "Options:\n      --a <A>  What\n      - x: (not --b)\n           it is [env: X=] [default: 1]\n  -v, --v <V>  Loud\n";
    let expected = [("--a", ("X", "1")), ("--v", ("", ""))];
    let expected =
        expected.map(|(name, (env, default))| (name.to_owned(), (env.to_owned(), default.to_owned())));
    assert_eq!(flags_of_help(text), BTreeMap::from(expected));
}

fn ignored() -> BTreeSet<String> {
    list("src/config/ceph_csi.rs", "IGNORED").into_iter().map(|name| format!("--{name}")).collect()
}

fn help(command: &[&str]) -> String {
    let mut driver = Command::new(env!("CARGO_BIN_EXE_ceph-rbd-csi"));
    let output = driver.args(command).arg("--help").env_remove("CSI_ENDPOINT").env_remove("NODE_ID").output();
    String::from_utf8(output.expect("the driver runs").stdout).expect("a text")
}

fn flags_of_help(help: &str) -> BTreeMap<String, About> {
    let mut flags: BTreeMap<String, About> = BTreeMap::new();
    let mut last = None;
    for line in help.lines().skip_while(|line| *line != "Options:").skip(1) {
        if line.trim_start().starts_with('-') && !line.trim_start().starts_with("- ") {
            last = line.split([' ', ',', '=', '[']).find(|word| word.starts_with("--")).map(str::to_owned);
        }
        let Some(name) = &last else { continue };
        let (env, default) = flags.entry(name.clone()).or_default();
        if let Some(found) = between(line, "[env: ", "=") {
            found.clone_into(env);
        }
        if let Some(found) = between(line, "[default: ", "]") {
            found.clone_into(default);
        }
    }
    flags.remove("--help");
    flags.remove("--version");
    flags
}
