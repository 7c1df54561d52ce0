//! smoke
fn main() -> anyhow::Result<()> {
    spanwire_e2e::interrupt::listen()?;
    let t = std::time::Instant::now();
    let say = |s: &str| eprintln!("{:.2} {s}", t.elapsed().as_secs_f32());
    spanwire_e2e::tools::prepare(spanwire_e2e::tools::Install::Allowed, &say)?;
    let b = spanwire_e2e::binaries::control_plane(&say)?;
    say("have binaries");
    let c = spanwire_e2e::cluster::Cluster::start(&b, spanwire_e2e::cluster::Wanted{name:"smoke", has_node: std::env::var("NONODE").is_err(), emulated_version: std::env::var("EMU").ok().as_deref()}, &say)?;
    say("ready");
    if std::env::args().nth(1).as_deref() == Some("wait") {
        let _ = spanwire_e2e::wait::for_period(std::time::Duration::from_secs(100_000));
    }
    drop(c);
    say("stopped");
    Ok(())
}
