package lint

import (
	"fmt"
	"os"
	"testing"
)

// TestMain changes to the root folder, so that tests name files relative to it.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
