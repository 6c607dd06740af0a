//! Compiles the files of proto/ with protox (no protoc needed) and takes `Debug` off every message that carries
//! secrets, so that printing such a request does not compile.

use prost_types::{DescriptorProto, FileDescriptorSet};

const FILES: [&str; 3] = ["csi.proto", "csi-addons/identity.proto", "csi-addons/encryptionkeyrotation.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let mut config = tonic_prost_build::Config::new();
    // Ordered maps: the same request always encodes to the same bytes, which is how duplicates are told.
    config.btree_map(["."]);
    config.skip_debug(messages_with_secrets(&descriptors));
    tonic_prost_build::configure()
        .generate_default_stubs(true)
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}

fn messages_with_secrets(descriptors: &FileDescriptorSet) -> Vec<String> {
    let ours = descriptors.file.iter().filter(|file| !file.package().starts_with("google."));
    let messages = ours.flat_map(|file| file.message_type.iter().map(|message| (file.package(), message)));
    let secret = messages.filter(|(_, message)| has_secrets(message));
    secret.map(|(package, message)| format!("{package}.{}", message.name())).collect()
}

fn has_secrets(message: &DescriptorProto) -> bool {
    message.field.iter().any(|field| field.name() == "secrets" || field.name().ends_with("_secrets"))
}
