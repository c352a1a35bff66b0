//! Server stubs from the protocol's files, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["streams.proto", "gossip.proto", "serverfeatures.proto"];
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_build::configure()
        .build_client(false)
        .extern_path(".event_store.client.Empty", "()")
        // Of batches only, which the stand-in does not take.
        .extern_path(".google.rpc.Status", "()")
        .bytes([
            ".event_store.client.streams.AppendReq.ProposedMessage",
            ".event_store.client.streams.ReadResp.ReadEvent.RecordedEvent",
        ])
        .include_file("wire.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
