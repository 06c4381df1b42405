package main

import (
	"encoding/json"
	"io"
)

// writeJSON writes one indented value, as every command does under --output json.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
