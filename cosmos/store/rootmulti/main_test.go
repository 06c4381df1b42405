//go:build !upstream

package rootmulti

import (
	"flag"
	"os"
	"testing"

	"github.com/starling-kv/starling/internal/seeds"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("30"); err != nil { // fewer rapid checks; -short divides them by 5
			panic(err)
		}
	}
	if seed := os.Getenv(seeds.Variable); seed != "" {
		if err := flag.Set("rapid.seed", seed); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
