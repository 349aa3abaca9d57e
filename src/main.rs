fn main() -> anyhow::Result<()> {
    print!("{}", sluice::api::crds::yaml()?);
    Ok(())
}
