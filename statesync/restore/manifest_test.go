package restore

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// A commitment without the app hash, or an endless manifest, proves a fault. No more of a manifest
// is requested than its chunks allow.
func TestHostileLengthsOfManifests(t *testing.T) {
	for name, meddle := range map[string]func(v *avlstar.Version, most *atomic.Uint64) meddler{
		"a commitment to more chunks": func(v *avlstar.Version, _ *atomic.Uint64) meddler {
			return instead(protocol.MethodCommitment, func() ([]byte, error) {
				c := v.Commitment()
				c.Chunks = 1 << 30
				return c.Encode(), nil
			})
		},
		"a manifest without an end": func(_ *avlstar.Version, most *atomic.Uint64) meddler {
			return func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
				if r.Method != protocol.MethodManifest {
					return answer, err
				}
				m, err := protocol.DecodeManifestRequest(r.Body)
				most.Store(max(most.Load(), m.Offset+uint64(m.Length)))
				return make([]byte, m.Length), err
			}
		},
		"a range that is too long": func(*avlstar.Version, *atomic.Uint64) meddler {
			return func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
				if r.Method == protocol.MethodManifest {
					answer = make([]byte, 1<<20+1)
				}
				return answer, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				v := w.state(2000, 1000, 10)
				var most atomic.Uint64
				liar := w.add(meddle(v, &most), 10)
				p := w.peersOver(w.dialer(), 0)
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				_, err := Run(ctx, w.options(p, newDisk()))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				_, banned := p.Addresses()
				require.Contains(t, banned, liar.listener.Address().ID)
				require.LessOrEqual(t, most.Load(), uint64(protocol.EntryBytes*v.NumChunks()))
				if name == "a commitment to more chunks" {
					require.Zero(t, liar.count(protocol.MethodManifest))
				}
			})
		})
	}
}
