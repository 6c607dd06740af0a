//! What a cluster says of its pools: room, quotas, and what is wrong with them. Only `ceph` tells that; it is a Python
//! program that takes up to half a second, so it is asked seldom, once for all pools, and its answer kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::error::{Error, Result};

use crate::backend::rbd::cli::Cli;

/// What is asked for, one question on each line: `ceph` answers them in one run.
pub(crate) const QUESTIONS: &str = "df detail\nosd pool ls detail\nhealth detail\n";
/// How long a failure is believed.
const FAILURE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) pools: BTreeMap<u64, Pool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) name: String,
    /// Bytes that the disks below it can take yet, whatever its quota.
    pub(crate) max_avail: u64,
    /// Bytes and objects that it holds.
    pub(crate) stored: u64,
    pub(crate) objects: u64,
    /// 0: none.
    pub(crate) quota_bytes: u64,
    pub(crate) quota_objects: u64,
    /// `full`, `full_quota`, `nearfull` and others.
    pub(crate) flags: Vec<String>,
    /// What Ceph says of its placement groups, by the name of the health check.
    pub(crate) sick: Vec<(String, String)>,
}

/// The answers to the questions, told by what is in them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Room { pools: Vec<Room> },
    Details(Vec<Detail>),
    Health { checks: BTreeMap<String, Check> },
}

#[derive(Deserialize)]
struct Room {
    id: u64,
    name: String,
    stats: Stats,
}

#[derive(Deserialize)]
struct Stats {
    #[serde(default)]
    stored: u64,
    #[serde(default)]
    objects: u64,
    max_avail: u64,
    #[serde(default)]
    quota_bytes: u64,
    #[serde(default)]
    quota_objects: u64,
}

#[derive(Deserialize)]
struct Detail {
    #[serde(alias = "pool")]
    pool_id: u64,
    #[serde(default)]
    flags_names: String,
}

#[derive(Deserialize)]
struct Check {
    #[serde(default)]
    detail: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    message: String,
}

impl Report {
    /// None where the room of the pools is not among the answers: without the right to ask, `ceph` prints nothing and
    /// succeeds all the same.
    pub(crate) fn read(printed: &[u8]) -> Option<Self> {
        let answers = serde_json::Deserializer::from_slice(printed).into_iter::<Answer>();
        let answers: Vec<Answer> = answers.map_while(std::result::Result::ok).collect();
        let mut report = Self::default();
        let mut roomed = false;
        for answer in &answers {
            if let Answer::Room { pools } = answer {
                roomed = true;
                report.pools = pools.iter().map(|room| (room.id, room.pool())).collect();
            }
        }
        for answer in answers {
            report.take(answer);
        }
        roomed.then_some(report)
    }

    pub(crate) fn pool(&self, name: &str) -> Option<(u64, &Pool)> {
        self.pools.iter().find(|(_, pool)| pool.name == name).map(|(id, pool)| (*id, pool))
    }

    fn take(&mut self, answer: Answer) {
        match answer {
            Answer::Room { .. } => {}
            Answer::Details(details) => {
                for detail in details {
                    if let Some(pool) = self.pools.get_mut(&detail.pool_id) {
                        pool.flags = detail.flags_names.split(',').map(str::to_owned).collect();
                    }
                }
            }
            Answer::Health { checks } => {
                for (name, check) in checks {
                    check.detail.into_iter().for_each(|line| self.blame(&name, line.message));
                }
            }
        }
    }

    /// `pg <pool>.<number> is …`. Ceph names at most 50 of them for each check.
    fn blame(&mut self, check: &str, message: String) {
        let pool = message.strip_prefix("pg ").and_then(|rest| rest.split_once('.'));
        let pool = pool.and_then(|(id, _)| id.parse().ok()).and_then(|id: u64| self.pools.get_mut(&id));
        if let Some(pool) = pool {
            pool.sick.push((check.to_owned(), message));
        }
    }
}

impl Room {
    fn pool(&self) -> Pool {
        let Stats { stored, objects, max_avail, quota_bytes, quota_objects } = self.stats;
        Pool {
            name: self.name.clone(),
            max_avail,
            stored,
            objects,
            quota_bytes,
            quota_objects,
            ..Pool::default()
        }
    }
}

/// The last answer of a cluster to a user, and when it came. The lock is held while it is asked: who comes meanwhile
/// gets the same answer.
type Known = Arc<tokio::sync::Mutex<Option<(Instant, Result<Arc<Report>>)>>>;

#[derive(Default)]
pub(crate) struct Reports {
    known: Mutex<HashMap<(String, String), Known>>,
}

impl Reports {
    /// No older than that.
    pub(crate) async fn get(&self, cli: &Cli<'_>, age: Duration) -> Result<Arc<Report>> {
        let known = self.known(cli);
        let mut known = known.lock().await;
        if let Some((since, answer)) = known.as_ref()
            && since.elapsed() < if answer.is_ok() { age } else { FAILURE.min(age) }
        {
            return answer.clone();
        }
        let answer = cli.report().await.map(Arc::new);
        *known = Some((Instant::now(), answer.clone()));
        answer
    }

    fn known(&self, cli: &Cli<'_>) -> Known {
        let key = (cli.access.cluster.clone(), cli.access.user.clone());
        self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone()
    }
}

/// Not `Invalid`: the pool may be made at any time.
pub(crate) fn absent(pool: &str, cluster: &str, report: &Report) -> Error {
    let names: Vec<&String> = report.pools.values().map(|pool| &pool.name).collect();
    Error::Precondition(format!(
        "pool {pool:?} is not in cluster {cluster:?}, which has {names:?}: create it (ceph osd pool create, rbd pool init)"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What Ceph 16.2 printed, without what is not read.
    const PRINTED: &str = r#"
{"stats":{"total_bytes":1},"pools":[{"name":"a","id":1,"stats":{"stored":19,"objects":1,"max_avail":20079845376,"quota_objects":0,"quota_bytes":0}},
{"name":"q","id":3,"stats":{"stored":16777288,"objects":9,"max_avail":20079845376,"quota_objects":7,"quota_bytes":10485760}}]}

[{"pool_id":1,"pool_name":"a","flags_names":"hashpspool"},{"pool_id":3,"flags_names":"hashpspool,full,full_quota"},{"pool_id":9}]
{"status":"HEALTH_WARN","checks":{"PG_AVAILABILITY":{"severity":"HEALTH_WARN","detail":[{"message":"pg 1.7 is stuck inactive for 2s"},
{"message":"pg 8.0 is stuck inactive for 2s"}]},"POOL_FULL":{"detail":[{"message":"pool 'q' is full (running out of quota)"}]}},"mutes":[]}
"#;

    #[test]
    fn one_run_answers_all_questions() {
        let report = Report::read(PRINTED.as_bytes()).expect("a report");
        let (id, pool) = report.pool("q").expect("pool q");
        assert_eq!((id, pool.stored, pool.max_avail), (3, 16_777_288, 20_079_845_376));
        assert_eq!((pool.quota_bytes, pool.quota_objects, pool.objects), (10_485_760, 7, 9));
        assert_eq!(pool.flags, ["hashpspool", "full", "full_quota"]);
        assert_eq!(pool.sick, []);
        let sick = ("PG_AVAILABILITY".to_owned(), "pg 1.7 is stuck inactive for 2s".to_owned());
        assert_eq!(report.pools[&1].sick, [sick]);
        assert_eq!(report.pools.len(), 2);
    }

    #[test]
    fn answers_that_are_missing_leave_the_rest() {
        let room = PRINTED.split("\n\n").next().expect("the first answer");
        let report = Report::read(room.as_bytes()).expect("a report");
        assert!(report.pools.values().all(|pool| pool.flags.is_empty() && pool.sick.is_empty()));
        assert_eq!(Report::read(b"\n\n"), None);
        assert_eq!(Report::read(b"[]{\"checks\":{}}"), None);
        assert_eq!(Report::read(b"not JSON"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_report_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..64), text in "([\\[\\]{}:,\"a-z0-9 ]|\"pools\"|\"checks\"){0,40}") {
            for printed in [bytes.as_slice(), text.as_bytes()] {
                prop_assert!(Report::read(printed).is_none_or(|_| text.contains("pools")));
            }
        }
    }
}
