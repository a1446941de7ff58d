"""What captured work lives on: devices, streams, memory pools, storages, generators."""
