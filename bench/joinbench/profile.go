package joinbench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/google/pprof/profile"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/internal/child"
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/config"
)

// ChildName is the name of the child process: a joiner whose CPU profile is taken.
const ChildName = "join"

// profileBegin has a joiner's home, and whether it fetches blocks over the transport.
type profileBegin struct {
	Dir     string   `json:"dir"`
	CatchUp bool     `json:"catch_up"`
	Fabric  []string `json:"fabric"` // addresses with which the node may have RDMA channels
}

// Component is the CPU time of a part of the joiner, by the samples of a profile.
type Component struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"cpu_s"`
}

// profileRequest asks for the components once the joiner has executed the block of a height.
type profileRequest struct {
	Height int64 `json:"height"`
}

// profiled runs a node in this process. Its profile begins before the node.
type profiled struct {
	into   bytes.Buffer
	node   *node.Node
	cancel context.CancelFunc
	ended  chan struct{} // closed when the node's Start has returned err
	err    error
}

// Serve runs a child process, which answers one request.
func Serve(in io.Reader, out io.Writer) error {
	return child.Run(in, out, func(b profileBegin) (child.Worker[profileRequest, []Component], []Component, error) {
		p, err := startProfiled(b)
		return p, nil, err
	})
}

func startProfiled(b profileBegin) (p *profiled, err error) {
	p = &profiled{ended: make(chan struct{})}
	if err := pprof.StartCPUProfile(&p.into); err != nil {
		return nil, err
	}
	v := viper.New()
	v.Set("catch_up.enabled", b.CatchUp)
	v.Set("disk.min_free_bytes", 0)
	if len(b.Fabric) > 0 {
		v.Set("transport.rdma", "required")
		v.Set("transport.rdma_fabric", network.Fabric(b.Fabric...))
	}
	conf, err := config.Load(b.Dir, v)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	if p.node, err = node.New(ctx, conf, log.NewNopLogger()); err != nil {
		cancel()
		return nil, err
	}
	go func() {
		defer close(p.ended)
		p.err = p.node.Start(ctx)
	}()
	return p, nil
}

// Do implements child.Worker: it waits for the height and ends the profile.
func (p *profiled) Do(r profileRequest, _ *bufio.Reader) ([]Component, error) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for started := p.ended; p.node.Application().Height() < r.Height; {
		select {
		case <-started:
			if p.err != nil {
				return nil, p.err
			}
			started = nil
		case err := <-p.node.Failed():
			return nil, err
		case <-ticker.C:
		}
	}
	pprof.StopCPUProfile()
	return componentsOf(&p.into)
}

// Close implements child.Worker.
func (p *profiled) Close() error {
	p.cancel()
	<-p.ended // its error does not matter any more
	return p.node.Stop()
}

// componentOrder has the names of the components, and the beginnings of their functions' names. A
// sample belongs to the innermost function of this list on its stack: a copy by the database is
// storage, and a system call of a connection is network.
var componentOrder = []struct {
	name      string
	functions []string
}{
	{"network", []string{"net.", "github.com/starling-kv/starling/transport"}},
	{"encryption", []string{
		"crypto/tls.", "crypto/cipher.", "crypto/aes.", "crypto/internal/fips140/aes", "golang.org/x/crypto/chacha20", "golang.org/x/crypto/internal/poly1305",
		"github.com/cometbft/cometbft/p2p/conn.(*SecretConnection)",
	}},
	{"signatures", []string{
		"crypto/ed25519.", "crypto/internal/fips140/ed25519", "crypto/internal/fips140/edwards25519", "crypto/sha512.", "crypto/internal/fips140/sha512",
		"github.com/oasisprotocol/curve25519-voi",
	}},
	{"SHA-256", []string{"github.com/starling-kv/starling/avlstar/sha256mb", "crypto/sha256.", "crypto/internal/fips140/sha256", "github.com/cometbft/cometbft/crypto/merkle.", "github.com/cometbft/cometbft/crypto/tmhash."}},
	{"state's tree", []string{"github.com/starling-kv/starling/avlstar"}},
	{"storage", []string{
		"github.com/cockroachdb/", "github.com/cometbft/cometbft/store.", "github.com/starling-kv/starling/storage", "github.com/cometbft/cometbft-db.", "github.com/golang/snappy.", "github.com/klauspost/compress", "os.",
		"github.com/DataDog/zstd", "github.com/cespare/xxhash", "github.com/cometbft/cometbft/libs/autofile",
	}},
	{"encoding", []string{"github.com/cosmos/gogoproto", "github.com/gogo/protobuf", "github.com/cometbft/cometbft/proto/", "github.com/cometbft/cometbft/api/", "encoding/", "google.golang.org/protobuf"}},
	{"p2p and block sync", []string{"github.com/cometbft/cometbft/p2p", "github.com/cometbft/cometbft/blocksync"}},
	{"catching up", []string{"github.com/starling-kv/starling/statesync", "github.com/starling-kv/starling/node/join"}},
	{"execution", []string{"github.com/starling-kv/starling/app", "github.com/cometbft/cometbft/state", "github.com/cometbft/cometbft/abci", "github.com/cometbft/cometbft/mempool", "github.com/starling-kv/starling/node", "github.com/cometbft/cometbft/types"}},
}

// Samples of no component: those of the runtime's work in the background, and the rest.
const (
	collector = "garbage collector"
	otherPart = "other"
)

// componentNames returns the names of all components, in the order of pictures.
func componentNames() (names []string) {
	for _, c := range componentOrder {
		names = append(names, c.name)
	}
	return append(names, collector, otherPart)
}

// componentsOf adds up the samples of a CPU profile by component.
func componentsOf(r io.Reader) (all []Component, err error) {
	p, err := profile.Parse(r)
	if err != nil {
		return nil, err
	}
	seconds := map[string]float64{}
	for _, s := range p.Sample {
		nanoseconds := float64(s.Value[len(s.Value)-1])
		seconds[componentOf(functionsOf(s))] += nanoseconds / 1e9
	}
	for _, name := range componentNames() {
		all = append(all, Component{name, seconds[name]})
	}
	return all, nil
}

// functionsOf returns the functions of a sample, the innermost first.
func functionsOf(s *profile.Sample) (names []string) {
	for _, location := range s.Location {
		for _, l := range location.Line {
			if l.Function != nil {
				names = append(names, l.Function.Name)
			}
		}
	}
	return names
}

// componentOf returns the component of a stack. names has the innermost function first.
func componentOf(names []string) string {
	for _, name := range names {
		for _, c := range componentOrder {
			for _, f := range c.functions {
				if strings.HasPrefix(name, f) {
					return c.name
				}
			}
		}
	}
	for _, name := range names {
		if strings.HasPrefix(name, "runtime.gcBgMark") || strings.HasPrefix(name, "runtime.bgsweep") || strings.HasPrefix(name, "runtime.bgscavenge") {
			return collector
		}
	}
	return otherPart
}

// printComponents writes the profiles as a table.
func (r *Result) printComponents(w io.Writer) {
	header := []string{"CPU seconds by component, with a profile"}
	rows := map[string][]string{}
	for _, way := range r.Ways {
		if len(way.Components) == 0 {
			continue
		}
		header = append(header, way.Name)
		for _, c := range way.Components {
			rows[c.Name] = append(rows[c.Name], fmt.Sprintf("%.2f", c.Seconds))
		}
	}
	if len(header) == 1 {
		return
	}
	cells := [][]string{header}
	for _, name := range componentNames() {
		cells = append(cells, append([]string{name}, rows[name]...))
	}
	fmt.Fprintln(w)
	harness.PrintAligned(w, cells)
}

// profileJoin runs a joiner in a child of this program until it has the block of a height.
func profileJoin(ctx context.Context, b profileBegin, height int64) (all []Component, err error) {
	p, err := harness.StartRunning(ctx, ChildName, "the joiner", b, nil)
	if err != nil {
		return nil, err
	}
	defer p.End()
	err = p.Ask(profileRequest{height}, &all)
	return all, err
}
