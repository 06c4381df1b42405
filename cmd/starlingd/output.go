package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// writeJSON writes one indented value, the form of every result with --output json.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// counted writes a number with its noun: "1 block", "2 blocks".
func counted[N ~int | ~int64 | ~uint64 | ~uint32](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
