//! Topology: from where a volume or a snapshot has to be, or can be, reached.

use crate::backend::{Offer, Places, Segments};
use crate::csi::proto::{Topology, TopologyRequirement};
use crate::error::{Error, Result};

use super::map;

/// Not to be asked where it is not offered (CSI specification, `accessibility_requirements`).
pub(super) fn wanted(wire: Option<TopologyRequirement>, offers: &[Offer]) -> Result<Places> {
    let TopologyRequirement { requisite, preferred } = wire.unwrap_or_default();
    let places = |list: Vec<Topology>| -> Result<Vec<Segments>> { list.into_iter().map(one).collect() };
    let places = Places { requisite: places(requisite)?, preferred: places(preferred)? };
    if !places.is_empty() && !offers.contains(&Offer::Topology) {
        let what = "the driver does not advertise VOLUME_ACCESSIBILITY_CONSTRAINTS: start its controller with --domainlabels";
        return Err(Error::Invalid(format!("accessibility_requirements: {what}")));
    }
    Ok(places)
}

pub(super) fn one(wire: Topology) -> Result<Segments> {
    map("accessible topology: segments", wire.segments)
}

/// Empty: reached from everywhere.
pub(super) fn reached_from(places: Vec<Segments>) -> Vec<Topology> {
    places.into_iter().map(|segments| Topology { segments }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(node: &str) -> Segments {
        [("topology/node".to_owned(), node.to_owned())].into()
    }

    fn topology(node: &str) -> Topology {
        Topology { segments: segments(node) }
    }

    #[test]
    fn what_is_required_and_what_is_wished_are_told_apart() {
        let wire = TopologyRequirement {
            requisite: vec![topology("a"), topology("b")],
            preferred: vec![topology("b")],
        };
        let places = wanted(Some(wire.clone()), &[Offer::Topology]).expect("good places");
        assert_eq!(places.requisite, [segments("a"), segments("b")]);
        assert_eq!(places.preferred, [segments("b")]);
        assert!(wanted(None, &[]).expect("anywhere").is_empty());
        assert!(wanted(Some(TopologyRequirement::default()), &[]).expect("anywhere").is_empty());
        assert_eq!(wanted(Some(wire), &[]).map_err(|error| error.code()), Err(tonic::Code::InvalidArgument));
    }

    #[test]
    fn a_volume_without_a_place_is_reached_from_everywhere() {
        assert_eq!(reached_from(Vec::new()), []);
        assert_eq!(reached_from(vec![segments("a")]), [topology("a")]);
    }
}
