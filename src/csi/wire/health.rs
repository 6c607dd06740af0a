//! Health in both dialects: the volume condition of CSI 1.12, and the health statuses of 1.13.

use crate::backend::{Ailment, Severity};
use crate::csi::proto::node_get_storage_health_response::StorageBackendHealth;
use crate::csi::proto::volume_health::VolumeHealthEntry;
use crate::csi::proto::{
    NodeGetStorageHealthResponse, StorageHealthErrorType, VolumeCondition, VolumeHealth,
    VolumeHealthErrorType,
};

const WELL: &str = "the volume is well";

/// For COs of 1.12.
pub(crate) fn condition(ailments: &[Ailment]) -> VolumeCondition {
    if ailments.is_empty() {
        return VolumeCondition { abnormal: false, message: WELL.to_owned() };
    }
    let messages: Vec<_> = ailments.iter().map(|ailment| ailment.message.as_str()).collect();
    VolumeCondition { abnormal: true, message: messages.join("; ") }
}

/// For COs of 1.13.
pub(crate) fn of_volume(volume_id: String, ailments: Vec<Ailment>) -> VolumeHealth {
    let status = |severity| match severity {
        Severity::Degraded => VolumeHealthErrorType::Degraded,
        Severity::Inaccessible => VolumeHealthErrorType::Inaccessible,
        Severity::DataLoss => VolumeHealthErrorType::DataLoss,
    };
    let entries = merged(ailments, status).into_iter().map(|(status, reason, message)| VolumeHealthEntry {
        status: status.into(),
        reason: reason.to_owned(),
        message,
    });
    VolumeHealth { volume_id, health_statuses: entries.collect() }
}

pub(crate) fn of_storage(ailments: Vec<Ailment>) -> NodeGetStorageHealthResponse {
    let status = |severity| match severity {
        Severity::Degraded => StorageHealthErrorType::StorageDegraded,
        Severity::Inaccessible | Severity::DataLoss => StorageHealthErrorType::StorageUnreachable,
    };
    let entries =
        merged(ailments, status).into_iter().map(|(status, reason, message)| StorageBackendHealth {
            status: status.into(),
            reason: reason.to_owned(),
            message,
            volume_capability: None,
        });
    NodeGetStorageHealthResponse { backend_health: entries.collect() }
}

/// The specification forbids two entries of one status and reason: their messages become one.
fn merged<S: PartialEq>(
    ailments: Vec<Ailment>,
    status: impl Fn(Severity) -> S,
) -> Vec<(S, &'static str, String)> {
    let mut entries: Vec<(S, &'static str, String)> = Vec::new();
    for Ailment { severity, reason, message } in ailments {
        let status = status(severity);
        match entries.iter_mut().find(|entry| entry.0 == status && entry.1 == reason) {
            Some((_, _, known)) => *known = format!("{known}; {message}"),
            None => entries.push((status, reason, message)),
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ailment(severity: Severity, reason: &'static str, message: &str) -> Ailment {
        Ailment { severity, reason, message: message.to_owned() }
    }

    fn ill() -> Vec<Ailment> {
        vec![
            ailment(Severity::Inaccessible, "DeviceGone", "no /dev/loop1"),
            ailment(Severity::Degraded, "IoErrors", "3 errors"),
            ailment(Severity::DataLoss, "DeviceGone", "no file"),
            ailment(Severity::Degraded, "IoErrors", "1 timeout"),
        ]
    }

    #[test]
    fn a_condition_says_everything_that_is_wrong() {
        let condition = super::condition(&ill());
        assert!(condition.abnormal);
        assert_eq!(condition.message, "no /dev/loop1; 3 errors; no file; 1 timeout");
        let well = super::condition(&[]);
        assert!(!well.abnormal && !well.message.is_empty());
    }

    #[test]
    fn no_status_and_reason_is_told_twice() {
        use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
        let health = of_volume("v".to_owned(), ill());
        assert_eq!(health.volume_id, "v");
        let entry = |status: VolumeHealthErrorType, reason: &str, message: &str| VolumeHealthEntry {
            status: status.into(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let expected = [
            entry(Inaccessible, "DeviceGone", "no /dev/loop1"),
            entry(Degraded, "IoErrors", "3 errors; 1 timeout"),
            entry(DataLoss, "DeviceGone", "no file"),
        ];
        assert_eq!(health.health_statuses, expected);
        assert_eq!(of_volume("v".to_owned(), Vec::new()).health_statuses, []);
    }

    #[test]
    fn storage_that_lost_data_is_out_of_reach() {
        let health = of_storage(ill()).backend_health;
        let found: Vec<_> = health.iter().map(|entry| (entry.status(), entry.message.as_str())).collect();
        let expected = [
            (StorageHealthErrorType::StorageUnreachable, "no /dev/loop1; no file"),
            (StorageHealthErrorType::StorageDegraded, "3 errors; 1 timeout"),
        ];
        assert_eq!(found, expected);
    }
}
