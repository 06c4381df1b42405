package transportbench

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// pathReference is the name of the raw reference.
const pathReference = "reference"

//go:embed reference/reference.c
var referenceSource []byte

// maxReference is the largest write of the reference: larger writes are not faster on the device.
// Paths are compared with the reference's largest writes.
const maxReference = 1 << 20

// besideReference reports whether the reference takes turns with responses of this size. Larger
// ones would have the same reference again.
func besideReference(size int, sizes []int) bool {
	return size <= maxReference || !slices.Contains(sizes, maxReference)
}

// reference returns the path of the reference program: given, or a new build.
func reference(ctx context.Context, given, dir string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	return buildReference(ctx, dir)
}

func buildReference(ctx context.Context, dir string) (string, error) {
	source, program := filepath.Join(dir, "reference.c"), filepath.Join(dir, "reference")
	if err := os.WriteFile(source, referenceSource, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "cc", "-O2", "-o", program, source, "-libverbs")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the raw reference (it needs a C compiler and libibverbs-dev): %w: %s", err, strings.TrimSpace(string(out)))
	}
	return program, nil
}

// referenceLine is the output of the program.
type referenceLine struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Machine float64 `json:"machine"`
	Events  uint64  `json:"events"`
}

func runReference(ctx context.Context, program string, e ends, size, bytes int) (s sample, err error) {
	cmd := exec.CommandContext(ctx, program, e.client, e.server, strconv.Itoa(size), strconv.Itoa(max(1, bytes/size)), strconv.Itoa(flight))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var l referenceLine
	if err := json.Unmarshal(out, &l); err != nil {
		return s, fmt.Errorf("the raw reference printed %q: %w", out, err)
	}
	return sample{bytes: l.Bytes, seconds: l.Seconds, machine: l.Machine, events: l.Events}, nil
}
