//! `topologyConstrainedPools`: pools that are reached from some places only, in ceph-csi's form. Pure.

use serde::Deserialize;

use crate::backend::{Parameters, Places, Segments};
use crate::error::{Error, Result};

use crate::backend::rbd::params::check_plain;

const NAME: &str = "topologyConstrainedPools";

/// A pool that volumes of a StorageClass may live in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) pool: String,
    pub(crate) data_pool: Option<String>,
    /// By the name of each domain, without the driver's prefix.
    domains: Segments,
}

/// All of them, in the order of the StorageClass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    listed: Vec<Candidate>,
    /// `pool` and `dataPool` of the StorageClass: for requests that name no place.
    anywhere: Option<Candidate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(rename = "poolName")]
    pool: String,
    #[serde(default, rename = "dataPool")]
    data_pool: String,
    #[serde(rename = "domainSegments")]
    domains: Vec<Domain>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Domain {
    #[serde(rename = "domainLabel")]
    label: String,
    value: String,
}

impl Candidates {
    /// None where the StorageClass names one pool for all.
    pub(crate) fn parse(
        parameters: &Parameters,
        pool: Option<&String>,
        data_pool: Option<&String>,
    ) -> Result<Option<Self>> {
        let Some(text) = parameters.get(NAME) else { return Ok(None) };
        let refuse = |what: String| Error::Invalid(format!("StorageClass parameter {NAME}={text:?}: {what}"));
        let entries: Vec<Entry> = serde_json::from_str(text).map_err(|error| {
            let form =
                r#"[{"poolName":"p","dataPool":"d","domainSegments":[{"domainLabel":"zone","value":"a"}]}]"#;
            refuse(format!("{error}: it has the form {form}"))
        })?;
        if entries.is_empty() {
            return Err(refuse("it names no pool".to_owned()));
        }
        let listed: Result<_> = entries.into_iter().map(|entry| entry.candidate(&refuse)).collect();
        let anywhere = pool.map(|pool| Candidate {
            pool: pool.clone(),
            data_pool: data_pool.cloned(),
            domains: Segments::new(),
        });
        Ok(Some(Self { listed: listed?, anywhere }))
    }

    /// Where requests that name no place go. Every replica and every retry knows it, so names are claimed there.
    pub(crate) fn first(&self) -> Option<&Candidate> {
        self.anywhere.as_ref().or(self.listed.first())
    }

    /// Those that are reached from where the request wants it, best first: preferred places in their order, then the
    /// requisite ones. `prefix`: the driver's, of the keys in a request.
    pub(crate) fn fitting(&self, places: &Places, prefix: &str) -> Vec<&Candidate> {
        if places.is_empty() {
            return self.first().into_iter().collect();
        }
        let admitted = |candidate: &&Candidate| {
            places.requisite.is_empty()
                || places.requisite.iter().any(|place| candidate.serves(place, prefix))
        };
        let wanted = places.preferred.iter().chain(&places.requisite);
        let mut fitting: Vec<&Candidate> = Vec::new();
        for candidate in wanted.flat_map(|place| self.serving(place, prefix)).filter(admitted) {
            if !fitting.contains(&candidate) {
                fitting.push(candidate);
            }
        }
        fitting
    }

    /// The pool that a volume for this place would be made in.
    pub(crate) fn at(&self, place: &Segments, prefix: &str) -> Option<&Candidate> {
        self.serving(place, prefix).next()
    }

    /// Those with this pool, under which a data pool may differ.
    pub(crate) fn of_pool(&self, pool: &str) -> Vec<&Candidate> {
        self.all().filter(|candidate| candidate.pool == pool).collect()
    }

    /// Each pool once.
    pub(crate) fn pools(&self) -> Vec<&str> {
        let mut pools: Vec<&str> = self.all().map(|candidate| candidate.pool.as_str()).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    /// The names of all domains.
    pub(crate) fn domains(&self) -> impl Iterator<Item = &str> {
        self.listed.iter().flat_map(|candidate| candidate.domains.keys()).map(String::as_str)
    }

    /// From where an image in these pools is reached: what is listed twice, from several places. Empty: everywhere.
    pub(crate) fn reached_from(&self, found: &Candidate, prefix: &str) -> Vec<Segments> {
        let same = |other: &&Candidate| other.pool == found.pool && other.data_pool == found.data_pool;
        let places: Vec<Segments> =
            self.listed.iter().filter(same).map(|candidate| candidate.segments(prefix)).collect();
        if places.iter().any(Segments::is_empty) { Vec::new() } else { places }
    }

    fn all(&self) -> impl Iterator<Item = &Candidate> {
        self.listed.iter().chain(&self.anywhere)
    }

    fn serving(&self, place: &Segments, prefix: &str) -> impl Iterator<Item = &Candidate> {
        self.listed.iter().filter(move |candidate| candidate.serves(place, prefix))
    }
}

impl Candidate {
    /// Whether the place, which may be told more exactly, is within what the pool serves.
    fn serves(&self, place: &Segments, prefix: &str) -> bool {
        self.domains.iter().all(|(name, value)| place.get(&format!("{prefix}{name}")) == Some(value))
    }

    fn segments(&self, prefix: &str) -> Segments {
        self.domains.iter().map(|(name, value)| (format!("{prefix}{name}"), value.clone())).collect()
    }
}

impl Entry {
    fn candidate(self, refuse: &impl Fn(String) -> Error) -> Result<Candidate> {
        check_plain(&format!("{NAME}: poolName"), &self.pool)?;
        let data_pool = Some(self.data_pool).filter(|pool| !pool.is_empty());
        data_pool.iter().try_for_each(|pool| check_plain(&format!("{NAME}: dataPool"), pool))?;
        let mut domains = Segments::new();
        for Domain { label, value } in self.domains {
            if label.is_empty() || value.is_empty() {
                return Err(refuse(format!("domainLabel {label:?}, value {value:?}: neither may be empty")));
            }
            if let Some(other) = domains.insert(label.clone(), value) {
                return Err(refuse(format!(
                    "{label:?} has two values, {other:?} is one: list the pool once for each"
                )));
            }
        }
        Ok(Candidate { pool: self.pool, data_pool, domains })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "topology.d/";
    const POOLS: &str = r#"[
        {"poolName":"a","domainSegments":[{"domainLabel":"region","value":"r"},{"domainLabel":"zone","value":"za"}]},
        {"poolName":"b","dataPool":"b-data","domainSegments":[{"domainLabel":"zone","value":"zb"}]},
        {"poolName":"b","dataPool":"b-data","domainSegments":[{"domainLabel":"zone","value":"zc"}]}]"#;

    fn check(text: &str, pool: Option<&str>) -> Result<Candidates, String> {
        let parameters = Parameters::from([(NAME.to_owned(), text.to_owned())]);
        let pool = pool.map(str::to_owned);
        let parsed = Candidates::parse(&parameters, pool.as_ref(), None);
        parsed.map_err(|error| error.to_string()).map(|found| found.expect("the parameter is there"))
    }

    fn place(pairs: &[(&str, &str)]) -> Segments {
        pairs.iter().map(|(name, value)| (format!("{PREFIX}{name}"), (*value).to_owned())).collect()
    }

    fn names(found: &[&Candidate]) -> Vec<String> {
        found.iter().map(|candidate| candidate.pool.clone()).collect()
    }

    #[test]
    fn the_best_place_that_a_pool_serves_comes_first() {
        let candidates = check(POOLS, None).expect("good pools");
        let (za, zb) = (place(&[("region", "r"), ("zone", "za"), ("rack", "1")]), place(&[("zone", "zb")]));
        let (bare, zd) = (place(&[("zone", "za")]), place(&[("zone", "zd")]));
        let fitting = |requisite: &[&Segments], preferred: &[&Segments]| {
            let owned = |list: &[&Segments]| list.iter().map(|&place| place.clone()).collect();
            let places = Places { requisite: owned(requisite), preferred: owned(preferred) };
            names(&candidates.fitting(&places, PREFIX))
        };
        assert_eq!(fitting(&[&za, &zb], &[&zb, &za]), ["b", "a"]);
        assert_eq!(fitting(&[&za, &zb], &[&zd]), ["a", "b"]);
        assert_eq!(fitting(&[&zb], &[&za]), ["b"], "preferred is a wish");
        assert_eq!(fitting(&[], &[&zb]), ["b"]);
        assert_eq!(
            fitting(&[&bare], &[]),
            Vec::<String>::new(),
            "part of a zone's name is no place of a pool"
        );
        assert_eq!(fitting(&[&zd], &[&zd]), Vec::<String>::new());
        assert_eq!(fitting(&[], &[]), ["a"]);
        assert_eq!(candidates.at(&zb, PREFIX).map(|found| found.pool.as_str()), Some("b"));
        assert_eq!(candidates.at(&zd, PREFIX), None);
    }

    #[test]
    fn the_plain_pool_is_for_requests_without_a_place() {
        let candidates = check(POOLS, Some("plain")).expect("good pools");
        assert_eq!(names(&candidates.fitting(&Places::default(), PREFIX)), ["plain"]);
        let places = Places { requisite: vec![place(&[("zone", "zd")])], preferred: Vec::new() };
        assert!(candidates.fitting(&places, PREFIX).is_empty());
        assert_eq!(candidates.pools(), ["a", "b", "plain"]);
        let plain = candidates.first().expect("a pool");
        assert_eq!(candidates.reached_from(plain, PREFIX), Vec::<Segments>::new());
    }

    #[test]
    fn a_pool_that_is_listed_twice_is_reached_from_both_places() {
        let candidates = check(POOLS, None).expect("good pools");
        let b = candidates.of_pool("b")[0];
        assert_eq!(b.data_pool.as_deref(), Some("b-data"));
        assert_eq!(candidates.reached_from(b, PREFIX), [place(&[("zone", "zb")]), place(&[("zone", "zc")])]);
        let a = candidates.first().expect("a pool");
        assert_eq!(candidates.reached_from(a, PREFIX), [place(&[("region", "r"), ("zone", "za")])]);
    }

    #[test]
    fn what_is_not_of_the_form_is_refused_with_what_is_wrong() {
        for (text, said) in [
            ("", "form"),
            ("[]", "no pool"),
            ("{}", "form"),
            (r#"[{"pool":"p","domainSegments":[]}]"#, "pool"),
            (r#"[{"poolName":"p"}]"#, "domainSegments"),
            (r#"[{"poolName":"p/q","domainSegments":[]}]"#, "p/q"),
            (r#"[{"poolName":"p","dataPool":"-d","domainSegments":[]}]"#, "-d"),
            (r#"[{"poolName":"p","domainSegments":[{"domainLabel":"zone","value":""}]}]"#, "empty"),
            (
                r#"[{"poolName":"p","domainSegments":[{"domainLabel":"z","value":"a"},{"domainLabel":"z","value":"b"}]}]"#,
                "two values",
            ),
        ] {
            let error = check(text, None).expect_err(text);
            assert!(error.contains(said) && error.contains(NAME), "{error}");
        }
    }
}
