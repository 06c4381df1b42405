// Package spectest compares the worked examples of docs/spec with what the code makes.
package spectest

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// line matches a line of an example: digits indented by four spaces, then, after two more spaces at
// least, a comment.
var line = regexp.MustCompile(`(?m)^    ([0-9a-f ]+)(  .*)?$`)

// Digits returns the hexadecimal digits of the examples of a page of docs/spec, such as "tree.md",
// one after another, without spaces and comments.
func Digits(t testing.TB, page string) string {
	t.Helper()
	folder, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, err := os.ReadFile(filepath.Join(folder, "docs", "spec", page))
		if err == nil {
			var digits strings.Builder
			for _, match := range line.FindAllSubmatch(b, -1) {
				digits.WriteString(strings.ReplaceAll(string(match[1]), " ", ""))
			}
			return digits.String()
		}
		if parent := filepath.Dir(folder); parent != folder {
			folder = parent
			continue
		}
		t.Fatalf("docs/spec/%s is in no folder above this test: %v", page, err)
	}
}

// Require checks that the examples of a page are exactly these bytes, one after another.
func Require(t testing.TB, page string, want ...[]byte) {
	t.Helper()
	var all strings.Builder
	for _, b := range want {
		all.WriteString(hex.EncodeToString(b))
	}
	if digits := Digits(t, page); digits != all.String() {
		t.Errorf("docs/spec/%s has the bytes\n%s\nand the code makes\n%s", page, digits, all.String())
	}
}
