"""Reading model files: GGUF, safetensors folders, fetching, and loading into the core."""
