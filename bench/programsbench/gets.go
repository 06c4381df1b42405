package programsbench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/api"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/client"
	e2e "github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

// The phase gets reads keys, each with a proof, from one sharded node that is not a validator: a
// gateway.
//
//	clients ──gRPC Get, newest state, proved──► gateway (nodes of hot keys in memory) ──► storage nodes
const (
	hotKeys     = 64
	hotBytes    = 1024
	getConns    = 4
	getsInConn  = 16 // calls in flight on each connection
	joinLimit   = 2 * time.Minute
	behind      = 2 // blocks of the trusted header behind the newest
	hotPutsOnce = 16
)

// GetsRow has the figures of proved gets from one gateway.
type GetsRow struct {
	PerSecond float64 `json:"gets_s"`
	Gets      int     `json:"gets"`
	// CPU time per get, in µs. The storage nodes' includes what blocks need.
	GatewayMicros float64 `json:"gateway_us_get"`
	StorageMicros float64 `json:"storage_us_get"`
	ClientsMicros float64 `json:"clients_us_get"`
	// Cores that all validators use, which make empty blocks.
	ValidatorsIdle float64 `json:"validators_cores_idle"`
	Validators     float64 `json:"validators_cores"`
	Load           float64 `json:"load"`
}

func hotKey(i int) []byte { return fmt.Appendf(nil, "%shot/%02d", keyPrefix, i) }

// gets measures one gateway, which joins the network.
func (c *cluster) gets(ctx context.Context, o Options) (row *GetsRow, err error) {
	for from := 0; from < hotKeys; from += hotPutsOnce {
		var puts []tx.Operation
		for i := range hotPutsOnce {
			puts = append(puts, tx.NewPut(hotKey(from+i), bytes.Repeat([]byte{byte(1 + from + i)}, hotBytes)))
		}
		if err := c.submit(ctx, puts...); err != nil {
			return nil, err
		}
	}
	if err := c.flush(ctx); err != nil {
		return nil, err
	}
	h, address, err := c.gateway(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		c.gateways = nil
		c.net.Kill(h)
	}()
	if err := c.verifyOne(ctx, address); err != nil {
		return nil, err
	}
	first := len(c.nodes)
	for range getConns {
		if err := c.dial(address); err != nil {
			return nil, err
		}
	}
	nodes := c.nodes[first:]
	c.nodes = c.nodes[:first]
	duration := time.Duration(o.Seconds) * time.Second
	if _, err := readHot(ctx, nodes, duration/4); err != nil { // does not count
		return nil, err
	}

	cpu, began := c.usage(), time.Now()
	if err := sleep.For(ctx, duration); err != nil {
		return nil, err
	}
	row = &GetsRow{ValidatorsIdle: (c.usage().validators - cpu.validators) / time.Since(began).Seconds()}

	cpu, began = c.usage(), time.Now()
	if row.Gets, err = readHot(ctx, nodes, duration); err != nil {
		return nil, err
	}
	seconds, used := time.Since(began).Seconds(), c.usage()
	row.PerSecond, row.Load = float64(row.Gets)/seconds, harness.LoadAverage()
	micros := func(seconds float64) float64 { return harness.Ratio(seconds*1e6, float64(row.Gets)) }
	row.GatewayMicros = micros(used.gateways - cpu.gateways)
	row.StorageMicros, row.ClientsMicros = micros(used.storage-cpu.storage), micros(used.clients-cpu.clients)
	row.Validators = (used.validators - cpu.validators) / seconds
	return row, nil
}

// gateway starts a sharded node that is not a validator, and waits until it follows the chain.
func (c *cluster) gateway(ctx context.Context) (h *e2e.Home, address string, err error) {
	homes, err := c.net.Homes(ctx, fmt.Sprintf("gateway-%d", len(c.gateways)), 1)
	if err != nil {
		return nil, "", err
	}
	h = homes[0]
	c.gateways = append(c.gateways, h)
	if address, err = c.net.ServeGRPC(h); err != nil {
		return nil, "", err
	}
	head, err := c.height(ctx)
	if err != nil {
		return nil, "", err
	}
	trusted, err := c.net.Validators[0].Header(ctx, max(1, head-behind))
	if err != nil {
		return nil, "", err
	}
	if err := c.net.Join(h, trusted); err != nil {
		return nil, "", err
	}
	limited, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	err = e2e.Poll(limited, "the gateway to join", func() bool {
		status, err := h.Status(limited)
		return err == nil && !status.CatchingUp && status.Height >= head
	})
	return h, address, err
}

// verifyOne reads a key through a light client. A header proves the state of the block before it,
// so the gateway may follow the chain and not serve the last block's writes yet.
func (c *cluster) verifyOne(ctx context.Context, address string) error {
	verifier, err := client.Dial(ctx, []string{address}, client.WithVerification(client.Trust{Genesis: c.net.Genesis}))
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	var failed error
	err = e2e.Poll(limited, "the gateway to serve what was written", func() bool {
		v, err := verifier.Get(limited, hotKey(hotKeys-1)) // the last one that was written
		failed = err
		return err != nil || len(v.Value) == hotBytes
	})
	return cmp.Or(failed, err)
}

// readHot reads hot keys for a time, and returns the number of reads. It checks that each answer
// has the value and a proof, and verifies no proof.
func readHot(ctx context.Context, nodes []api.NodeClient, duration time.Duration) (int, error) {
	until := time.Now().Add(duration)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var readers sync.WaitGroup
	var done atomic.Int64
	for i := range getsInConn * len(nodes) {
		readers.Go(func() {
			for n := i; time.Now().Before(until) && ctx.Err() == nil; n++ {
				r, err := nodes[i%len(nodes)].Get(ctx, &api.GetRequest{Key: hotKey(n % hotKeys), Prove: true})
				if err == nil && (len(r.GetValue()) != hotBytes || len(r.GetProof()) == 0) {
					err = errors.New("an answer of the gateway has no value or no proof")
				}
				if err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	readers.Wait()
	return int(done.Load()), context.Cause(ctx)
}

func (r *Result) printGets(out io.Writer) {
	g := r.Gets
	if g == nil {
		return
	}
	fmt.Fprintf(out, `
gets        %.0f proved gets per second of %d keys with %d bytes, from one sharded node without a vote, over gRPC, %d in flight; CPU per get: gateway
            %.0f µs, storage nodes %.0f, clients %.0f (one in this process, which verifies no proof). Validators: %.2f cores, without gets %.2f;
            load %.1f
`, g.PerSecond, hotKeys, hotBytes, getConns*getsInConn, g.GatewayMicros, g.StorageMicros, g.ClientsMicros, g.Validators, g.ValidatorsIdle, g.Load)
}
