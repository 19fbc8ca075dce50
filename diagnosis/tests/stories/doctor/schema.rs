//! The report for programs has the form that `docs/schema/doctor.json` says.

use crate::scene::{NIC, Scene};
use handfast_diagnosis::doctor::PacketClass;
use handfast_diagnosis::{Language, Style};
use serde_json::Value;

const SCHEMA: &str = include_str!("../../../../docs/schema/doctor.json");

/// Reports with every kind of outcome.
fn reports() -> Vec<Value> {
    let mut wrong = Scene::with_two();
    wrong.request.devices = vec!["mlx5_9".into()];
    wrong.variable("MC_MTU", "9000");
    wrong.file(&format!("{}/state", Scene::port(NIC.name)), "1: DOWN\n");
    let scenes = [Scene::healthy(), Scene::empty(), wrong];
    scenes.iter().map(|scene| scene.report().json(Language::Chinese)).collect()
}

#[test]
fn every_report_has_the_form_of_the_schema() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    for report in reports() {
        conforms(&report, &schema, "report").unwrap();
    }
    let mut broken = reports().remove(0);
    broken["checks"][0]["outcome"] = "perhaps".into();
    assert!(conforms(&broken, &schema, "report").is_err());
    broken["checks"][0].as_object_mut().unwrap().remove("name");
    broken["extra"] = 1.into();
    assert!(conforms(&broken, &schema, "report").is_err());
}

/// The part of JSON Schema in use: type, enum, required, properties, items, additionalProperties.
fn conforms(value: &Value, schema: &Value, place: &str) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{place}: {what}: {value}"));
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
        _ => panic!("{place}: the schema says no type"),
    };
    if !kinds.contains(&kind) {
        return wrong("has another type");
    }
    if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
        return wrong("is not allowed");
    }
    let required = schema["required"].as_array().filter(|_| value.is_object());
    for required in required.into_iter().flatten() {
        if value.get(required.as_str().unwrap()).is_none() {
            return wrong(&format!("lacks {required}"));
        }
    }
    for (name, part) in value.as_object().into_iter().flatten() {
        match schema["properties"].get(name) {
            Some(schema) => conforms(part, schema, &format!("{place}.{name}"))?,
            None if schema["additionalProperties"] == false => {
                return wrong(&format!("has {name}"));
            }
            None => {}
        }
    }
    for part in value.as_array().into_iter().flatten() {
        conforms(part, &schema["items"], place)?;
    }
    Ok(())
}

/// The queue that a fabric chooses for RDMA packets is shown, with what the default may cost.
#[test]
fn class_of_packets_is_shown_beside_the_devices() {
    let style = Style { language: Language::English, columns: 140, colour: false };
    let shown = |scene: &Scene| scene.report().words(&style);
    let mut scene = Scene::healthy();
    let words = shown(&scene);
    assert!(words.contains("traffic class 0 (DSCP 0), service level 0; a fabric"), "{words}");
    scene.request.packets = PacketClass { traffic_class: 106, service_level: 3 };
    let words = shown(&scene);
    assert!(words.contains("traffic class 106 (DSCP 26), service level 3\n"), "{words}");
    assert!(!shown(&Scene::empty()).contains("traffic class"));
}

#[test]
fn report_fits_its_columns_and_lists_skipped_probes() {
    let mut scene = Scene::with_two();
    scene.file(&format!("{}/state", Scene::port("mlx5_0")), "1: DOWN\n");
    scene.file(&format!("{}/state", Scene::port("mlx5_1")), "1: DOWN\n");
    scene.variable("http_proxy", "http://proxy:3128");
    for (language, skipped) in
        [(Language::English, "Skipped because of PORT-DOWN"), (Language::Chinese, "已跳过")]
    {
        for columns in [40, 60, 140] {
            let words = scene.report().words(&Style { language, columns, colour: false });
            assert!(
                words.contains(skipped) && words.contains("$ ip link set ens1f1 up"),
                "{words}"
            );
            for line in words.lines().filter(|line| !line.trim_start().starts_with('$')) {
                let wide = line.chars().filter(|c| *c > '\u{2e7f}').count();
                let longest = line.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
                let fits = line.chars().count() + wide <= columns + 2;
                assert!(fits || longest > columns - 24, "{columns}: {line}");
            }
        }
    }
    let healthy = Scene::healthy().report().words(&Style {
        language: Language::English,
        columns: 80,
        colour: false,
    });
    assert!(healthy.contains("Nothing was found."), "{healthy}");
}
