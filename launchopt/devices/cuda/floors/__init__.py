"""What a GPU costs without any work of a mode: launches, operators of libraries, copies."""
