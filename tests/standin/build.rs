//! Server stubs from the protocol's files, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["streams.proto", "gossip.proto", "serverfeatures.proto"];
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_build::configure()
        .build_client(false)
        .disable_comments(".")
        .extern_path(".event_store.client.Empty", "()")
        .bytes([
            ".event_store.client.streams.AppendReq.ProposedMessage",
            ".event_store.client.streams.ReadResp.ReadEvent.RecordedEvent",
        ])
        .include_file("wire.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
