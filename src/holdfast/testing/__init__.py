"""What tests of pipelines use: a faulty disk, a virtual clock."""
