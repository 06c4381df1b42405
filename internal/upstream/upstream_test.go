package upstream

import (
	"strings"
	"testing"
)

const sample = `package sample_test

import (
	"fmt"
	"example.org/sample/v2"
	"time"
)

func TestKept(t *testing.T) {
	sample.Open("db").Set(fmt.Sprint(1 * time.Second))
}

// TestDropped needs something that this package does not have.
func TestDropped(t *testing.T) { time.Sleep(1) }

type helper struct{}

func (h *helper) Close() {}
`

func TestRewrite(t *testing.T) {
	r := rewriter{used: map[string]bool{}, suite: Suite{
		Package: "ours",
		Replace: map[string]string{`sample.Open("db")`: "open()", "1 * time.Second": "60"},
		Drop:    map[string]string{"TestDropped": "x", "helper": "x"},
	}}
	b, err := r.file("sample_test.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	for _, want := range []string{"package ours", "open().Set(fmt.Sprint(60))", `"fmt"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	for _, gone := range []string{"example.org", `"time"`, "func TestDropped", "Close"} {
		if strings.Contains(got, gone) {
			t.Errorf("%q is still in:\n%s", gone, got)
		}
	}
	if len(r.tests) != 1 || r.tests[0] != "TestKept" {
		t.Errorf("tests: %q", r.tests)
	}
	if u := r.unused(); len(u) != 0 {
		t.Errorf("unused: %q", u)
	}
}

// TestUnused: a rewrite and a drop that match nothing are reported.
func TestUnused(t *testing.T) {
	r := rewriter{used: map[string]bool{}, suite: Suite{
		Package: "ours",
		Replace: map[string]string{`sample.Open("other")`: "open()"},
		Drop:    map[string]string{"TestGone": "x", "TestDropped": "x"},
	}}
	if _, err := r.file("sample_test.go", []byte(sample)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(r.unused(), " "); got != `TestGone sample.Open("other")` {
		t.Errorf("unused: %s", got)
	}
}
