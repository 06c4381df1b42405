package config

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// DivideStorageNodes returns the content of a storage nodes file for LoadStorageNodes. Its ranges
// begin with "" and with each of edges, in ascending order. Range i is kept by replicas consecutive
// nodes (ID@host:port), beginning with node i. The error matches ErrInvalid.
func DivideStorageNodes(edges [][]byte, nodes []string, replicas int) ([]byte, error) {
	if len(nodes) == 0 {
		return nil, Invalid(errors.New("no storage node is named"))
	}
	if replicas < 1 || replicas > len(nodes) {
		return nil, Invalid(fmt.Errorf("%d replicas of each range need as many storage nodes, there are %d", replicas, len(nodes)))
	}
	var b bytes.Buffer
	b.WriteString("# Key ranges and their storage nodes; identical in the home of every node. Each range ends where the next begins.\n")
	for i, first := range append([][]byte{nil}, edges...) {
		var of []string
		for k := range replicas {
			of = append(of, nodes[(i+k)%len(nodes)])
		}
		fmt.Fprintf(&b, "\n[[range]]\nfirst = %s\nnodes = %s\n", formatFirst(first), formatList(of))
	}
	if _, err := ParseStorageNodes(b.Bytes()); err != nil {
		return nil, Invalid(err)
	}
	return b.Bytes(), nil
}

// formatList formats a list of texts.
func formatList[S ~string](texts []S) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = fmt.Sprintf("%q", text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// formatFirst formats a key of the file.
func formatFirst(key []byte) string { return `"` + FormatKey(key) + `"` }

// FormatKey formats a key for ParseKey: as text if it is printable, otherwise as hex.
func FormatKey(key []byte) string {
	printable := !bytes.HasPrefix(key, []byte("0x"))
	for _, c := range key {
		printable = printable && c >= ' ' && c <= '~' && c != '"' && c != '\\'
	}
	if printable {
		return string(key)
	}
	return "0x" + hex.EncodeToString(key)
}

// EvenEdges returns the keys that divide printable text into n ranges of equal width, by the first
// two characters.
func EvenEdges(n int) (edges [][]byte) {
	const first, characters = ' ', '~' - ' ' + 1
	for i := 1; i < n; i++ {
		at := i * characters * characters / n
		edge := []byte{byte(first + at/characters)}
		if low := at % characters; low > 0 {
			edge = append(edge, byte(first+low))
		}
		edges = append(edges, edge)
	}
	return edges
}

// MaxEvenRanges is the largest argument of EvenEdges for which all edges are different.
const MaxEvenRanges = 4096

// ParseKey parses a key of the storage nodes file: text, or hex after 0x.
func ParseKey(s string) ([]byte, error) { return parseFirst(&s) }
