//! Lists of volumes, the state of one, and the room that is left.

use std::ops::ControlFlow;

use crate::backend::{Capacity, CapacityQuery, Listing, Page, VolumeState};
use crate::csi::proto;
use crate::csi::proto::controller_get_volume_response::VolumeStatus as GotStatus;
use crate::csi::proto::list_volumes_response::{Entry, VolumeStatus};
use crate::error::Result;

use super::pages::token;
use super::{capability, health, map, places, signed, volumes};

/// How many volumes are looked at in one step of the search for unhealthy ones.
const STEP: usize = 1000;

pub(crate) fn volumes(listing: Listing<VolumeState>) -> proto::ListVolumesResponse {
    let entry = |state: VolumeState| Entry {
        status: Some(VolumeStatus {
            volume_condition: Some(health::condition(&state.health)),
            published_node_ids: state.nodes,
        }),
        volume: Some(volumes::told(state.volume)),
    };
    proto::ListVolumesResponse {
        entries: listing.entries.into_iter().map(entry).collect(),
        next_token: token(listing.next),
    }
}

pub(crate) fn volume(state: VolumeState) -> proto::ControllerGetVolumeResponse {
    proto::ControllerGetVolumeResponse {
        status: Some(GotStatus {
            volume_condition: Some(health::condition(&state.health)),
            published_node_ids: state.nodes,
        }),
        volume: Some(volumes::told(state.volume)),
    }
}

/// The search for one page of unhealthy volumes, page by page through all of them.
pub(crate) struct Search {
    most: Option<usize>,
    found: Vec<VolumeState>,
}

impl Search {
    /// A search, and the first page to look at.
    pub(crate) fn new(wanted: Page) -> (Self, Page) {
        (Self { most: wanted.most, found: Vec::new() }, Page { most: Some(STEP), ..wanted })
    }

    /// Takes the unhealthy ones of a page. Goes on until one more is found than is wanted: so it is known whether
    /// another page follows.
    pub(crate) fn step(&mut self, seen: Listing<VolumeState>) -> ControlFlow<Listing<VolumeState>, Page> {
        self.found.extend(seen.entries.into_iter().filter(|state| !state.health.is_empty()));
        if let Some(most) = self.most.filter(|most| self.found.len() > *most) {
            self.found.truncate(most);
            let next = self.found.last().map(|state| state.volume.id.uuid);
            return ControlFlow::Break(Listing { entries: std::mem::take(&mut self.found), next });
        }
        match seen.next {
            Some(next) => ControlFlow::Continue(Page { after: Some(next), most: Some(STEP) }),
            None => ControlFlow::Break(Listing { entries: std::mem::take(&mut self.found), next: None }),
        }
    }
}

pub(crate) fn unhealthy(listing: Listing<VolumeState>) -> proto::ControllerListVolumeHealthResponse {
    let entry = |state: VolumeState| health::of_volume(state.volume.id.to_string(), state.health);
    proto::ControllerListVolumeHealthResponse {
        entries: listing.entries.into_iter().map(entry).collect(),
        next_token: token(listing.next),
    }
}

/// None: for a use that the driver does not offer there is no room at all.
pub(crate) fn capacity_query(request: proto::GetCapacityRequest) -> Result<Option<CapacityQuery>> {
    let capabilities = request.volume_capabilities.iter().map(|wire| capability::one(Some(wire)));
    let capabilities = capabilities.collect::<Result<Vec<_>>>()?;
    let query = CapacityQuery {
        parameters: map("parameters", request.parameters)?,
        place: request.accessible_topology.map(places::one).transpose()?,
    };
    let offered = capabilities.iter().all(|capability| capability::supported(capability).is_ok());
    Ok(offered.then_some(query))
}

pub(crate) fn capacity(capacity: Option<Capacity>) -> proto::GetCapacityResponse {
    proto::GetCapacityResponse {
        available_capacity: capacity.map_or(0, |capacity| signed(capacity.available)),
        maximum_volume_size: capacity.map(|capacity| signed(capacity.maximum)),
        minimum_volume_size: capacity.map(|capacity| signed(capacity.minimum)),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use uuid::Uuid;

    use super::*;
    use crate::backend::{Ailment, Severity, Volume};
    use crate::csi::wire::pages::page;
    use crate::id::{Pool, VolumeId};

    fn state(number: u128, ill: bool) -> VolumeState {
        let id = VolumeId { cluster: "c".to_owned(), pool: Pool::Id(1), uuid: Uuid::from_u128(number) };
        let volume = Volume { id, size: 1 << 20, context: [].into(), source: None, reached_from: Vec::new() };
        let ailment = Ailment { severity: Severity::Degraded, reason: "Slow", message: "slow".to_owned() };
        VolumeState { volume, nodes: vec!["n".to_owned()], health: vec![ailment; ill.into()] }
    }

    /// The uuids of a page of unhealthy volumes among 1 to 9, of which the odd ones are ill; `at_once` are seen in a step.
    fn search(at_once: u128, max: i32, after: u128) -> (Vec<u128>, Option<u128>) {
        let wanted = page(max, &token(Some(Uuid::from_u128(after)))).expect("a good page");
        let (mut search, mut page) = Search::new(wanted);
        loop {
            let first = page.after.map_or(0, |after| after.as_u128()) + 1;
            let last = (first + at_once - 1).min(9);
            let entries = (first..=last).map(|number| state(number, number % 2 == 1)).collect();
            let next = (last < 9).then(|| Uuid::from_u128(last));
            match search.step(Listing { entries, next }) {
                ControlFlow::Continue(next) => page = next,
                ControlFlow::Break(found) => {
                    let uuids = found.entries.iter().map(|state| state.volume.id.uuid.as_u128());
                    return (uuids.collect(), found.next.map(|next| next.as_u128()));
                }
            }
        }
    }

    #[test]
    fn unhealthy_volumes_are_found_page_by_page() {
        for at_once in [1, 2, 3, 100] {
            assert_eq!(search(at_once, 0, 0), (vec![1, 3, 5, 7, 9], None));
            assert_eq!(search(at_once, 2, 0), (vec![1, 3], Some(3)));
            assert_eq!(search(at_once, 2, 3), (vec![5, 7], Some(7)));
            assert_eq!(search(at_once, 2, 7), (vec![9], None));
            assert_eq!(search(at_once, 5, 0), (vec![1, 3, 5, 7, 9], None));
        }
    }

    #[test]
    fn a_volume_is_listed_with_its_nodes_and_its_condition() {
        let listing = Listing { entries: vec![state(1, true)], next: Some(Uuid::from_u128(1)) };
        let listed = volumes(listing);
        assert_eq!(listed.next_token, Uuid::from_u128(1).to_string());
        let status = listed.entries[0].status.clone().expect("a status");
        assert_eq!(status.published_node_ids, ["n"]);
        assert!(status.volume_condition.expect("a condition").abnormal);
    }

    #[test]
    fn there_is_no_room_for_what_is_not_offered() {
        use proto::volume_capability::access_mode::Mode;
        use proto::volume_capability::{AccessMode, AccessType, MountVolume};
        let query = |mode: Mode| {
            let capability = proto::VolumeCapability {
                access_type: Some(AccessType::Mount(MountVolume::default())),
                access_mode: Some(AccessMode { mode: mode.into() }),
            };
            let volume_capabilities = vec![capability];
            let request = proto::GetCapacityRequest { volume_capabilities, ..Default::default() };
            capacity_query(request).map(|query| query.is_some()).map_err(|error| error.code())
        };
        assert_eq!(query(Mode::SingleNodeWriter), Ok(true));
        assert_eq!(query(Mode::MultiNodeMultiWriter), Ok(false));
        assert_eq!(query(Mode::Unknown), Err(Code::InvalidArgument));
        assert_eq!(capacity(None).available_capacity, 0);
    }
}
