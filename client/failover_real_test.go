package client_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
)

// swallow returns an address that drops packets; nil if the system does not support this.
var swallow func(t *testing.T) string

// TestFailoverOverTCP: three addresses of a real node, one of which is killed, stopped or a black
// hole. No call is lost, reads stay fast, and a watch moves.
func TestFailoverOverTCP(t *testing.T) { endpoints(t, testFailover) }

func testFailover(t *testing.T, scheme, address string, genesis *types.GenesisDoc) {
	rounds := 20
	// What chooses the node is the same for both endpoints, so one of them is tested at length.
	if testing.Short() || scheme != "tcp://" {
		rounds = 6
	}
	for _, mode := range []string{"killed", "stopped", "black hole"} {
		for name, options := range map[string][]client.Option{
			"believing": nil, "verifying": {client.WithVerification(client.Trust{Genesis: genesis})},
		} {
			t.Run(mode+"/"+name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				relays := []*relay{newRelay(t, address), newRelay(t, address), newRelay(t, address)}
				var addresses []string
				for _, r := range relays {
					addresses = append(addresses, scheme+r.address)
				}
				if mode == "black hole" {
					if swallow == nil {
						t.Skip("no black hole on this system")
					}
					addresses[0] = scheme + swallow(t)
				}
				c, err := client.Dial(ctx, addresses, append(options, client.WithKey(admin))...)
				require.NoError(t, err)
				watcher, err := c.Watch(ctx, []byte("test/failover"))
				require.NoError(t, err)
				var written []string

				var reads, writes []time.Duration
				last := int64(0)
				for i := range rounds {
					if i == 2 {
						switch mode {
						case "killed":
							relays[0].kill()
						case "stopped":
							relays[0].stop()
						}
					}
					value := fmt.Sprintf("%s/%s/%d", mode, name, i)
					began := time.Now()
					_, err := c.Put(ctx, []byte("test/failover"), []byte(value))
					require.NoError(t, err)
					written = append(written, value)
					writes = append(writes, time.Since(began))
					for range 3 {
						began := time.Now()
						v, err := c.Get(ctx, []byte("test/failover"))
						require.NoError(t, err)
						require.Equal(t, value, string(v.Value))
						require.GreaterOrEqual(t, v.Height, last)
						last = v.Height
						reads = append(reads, time.Since(began))
					}
				}
				slices.Sort(reads)
				slices.Sort(writes)
				t.Logf("%d reads: median %v, longest %v; %d writes: median %v, longest %v", len(reads), reads[len(reads)/2], reads[len(reads)-1],
					len(writes), writes[len(writes)/2], writes[len(writes)-1])

				// The watch has lost nothing and repeats nothing.
				for _, value := range written {
					e, err := watcher.Next(ctx)
					require.NoError(t, err)
					require.Equal(t, value, string(e.Value))
				}
			})
		}
	}
}
