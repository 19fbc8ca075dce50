//! The ends of `--help`: pages of `help/` with examples, notes and exit codes.

macro_rules! pages {
    ($($command:ident: $first:literal $(, $next:literal)+;)+) => {
        $(pub(crate) const $command: &str = concat!(
            include_str!(concat!("help/", $first, ".txt")),
            $("\n", include_str!(concat!("help/", $next, ".txt"))),+
        );)+
    };
}

#[cfg(target_os = "linux")]
pages! {
    FABRIC_RUN: "fabric_run", "exit_codes";
}

pages! {
    HANDFAST: "handfast", "exit_codes";
    BENCH: "bench", "exit_codes";
    SERVE: "serve", "exit_codes";
    PUT: "put", "places", "exit_codes";
    GET: "get", "places", "exit_codes";
    GRANTS: "grants", "exit_codes";
    TOP: "top", "exit_codes";
    TOPOLOGY: "topology", "exit_codes";
    SMOKE: "smoke", "exit_codes";
    DOCTOR: "doctor", "exit_codes_doctor";
    EXPLAIN: "explain", "exit_codes_explain";
    SIM: "sim", "exit_codes_sim";
    SIM_EXPLORE: "sim_explore", "exit_codes_sim";
    SIM_SWEEP: "sim_sweep", "exit_codes_sim";
    SIM_FLEET: "sim_fleet", "exit_codes_sim";
    SIM_REPLAY: "sim_replay", "exit_codes_sim";
    SIM_MINIMIZE: "sim_minimize", "exit_codes_sim";
    SIM_TIMELINE: "sim_timeline", "exit_codes_sim";
    SIM_REDACT: "sim_redact", "exit_codes_sim";
    SIM_VARIANTS: "sim_variants", "exit_codes_sim";
}
