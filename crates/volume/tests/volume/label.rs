//! Changing the label of a closed volume.

use uringfs_device::Device;
use uringfs_device::backend::sim::{CrashPlan, Sim, SimOptions};
use uringfs_volume::{CheckOptions, ErrorKind, FormatOptions, Volume};

fn labelled() -> (Sim, Device) {
    let sim = Sim::new(SimOptions::new(40 << 20));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::new().label("old")).unwrap();
    (sim, device)
}

#[test]
fn a_label_is_changed_and_the_files_stay() {
    let (_, device) = labelled();
    let volume = Volume::open_on(device.clone()).unwrap();
    volume.write("/a", "of a").unwrap();
    volume.close().unwrap();
    for label in ["new", "", "sixty-four bytes: ............................................."] {
        Volume::set_label(&device, label).unwrap();
        assert_eq!(Volume::identify(&device).unwrap().unwrap().label, label);
        let report = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.is_sound(), "{:?}", report.findings);
        let volume = Volume::open_on(device.clone()).unwrap();
        assert_eq!((volume.label(), volume.read("/a").unwrap()), (label, b"of a".to_vec()));
        volume.close().unwrap();
    }
}

#[test]
fn a_label_is_refused_if_it_is_too_long_or_the_volume_open() {
    let (_, device) = labelled();
    for label in ["x".repeat(65), "a\0b".into()] {
        assert_eq!(Volume::set_label(&device, &label).unwrap_err().kind(), ErrorKind::Input);
    }
    let volume = Volume::open_on(device.clone()).unwrap();
    let error = Volume::set_label(&device, "new").unwrap_err();
    assert_eq!(error.io_kind(), std::io::ErrorKind::ResourceBusy, "{error}");
    volume.close().unwrap();
    assert_eq!(Volume::identify(&device).unwrap().unwrap().label, "old");
}

#[test]
fn a_power_cut_leaves_the_old_or_the_new_label() {
    let (sim, device) = labelled();
    sim.restart_record();
    Volume::set_label(&device, "new").unwrap();
    let (mut old, mut new) = (0, 0);
    let plan = CrashPlan { exhaustive_up_to: 4, samples: 8, seed: 5 };
    for image in sim.crash_images(plan) {
        let place = format!("seed 5, cut {}, {:?}", image.cut, image.crash);
        let device = Device::new(image.sim.clone()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        match volume.label() {
            "old" => old += 1,
            "new" => new += 1,
            other => panic!("{place}: {other}"),
        }
    }
    assert!(old > 1 && new > 1, "{old} old, {new} new");
}
