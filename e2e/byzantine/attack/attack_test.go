package attack

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cometbft/cometbft/abci/example/kvstore"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cosmos/gogoproto/proto"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
	"github.com/starling-kv/starling/tx"
)

const chain = "test-chain"

func TestParseTargets(t *testing.T) {
	const id = "00112233445566778899aabbccddeeff00112233"
	targets, err := ParseTargets(t.Context(), id+"@127.0.0.1:26656, "+id+"@[::1]:7,"+id+"@10.1.2.3:5")
	require.NoError(t, err)
	require.Equal(t, []Target{{"127.0.0.1:26656", "127.0.0.1:26666"}, {"[::1]:7", "[::1]:17"}, {"10.1.2.3:5", "10.1.2.3:15"}}, targets)
	targets, err = ParseTargets(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, targets)
	for _, public := range []string{"192.0.2.1:26656", "[2001:db8::1]:26656", "8.8.8.8:26656"} {
		_, err = ParseTargets(t.Context(), id+"@"+public)
		require.ErrorContains(t, err, "public address")
	}
}

// No transaction of Spam may be valid, whatever the seed.
func TestSpamIsNeverValid(t *testing.T) {
	a := New(Options{ChainID: chain})
	kinds := map[tx.Code]int{}
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		for range 20 {
			got, err := tx.Decode(a.invalid(random), chain)
			if err == nil {
				require.GreaterOrEqual(t, got.Body.Nonce, uint64(1)<<40, "the account is new: its nonce is 0")
				kinds[0]++
				continue
			}
			var refused *tx.Error
			require.ErrorAs(t, err, &refused)
			kinds[refused.Code]++
		}
	}
	require.NotZero(t, kinds[0])
	require.NotZero(t, kinds[tx.CodeBadSignature])
	require.Greater(t, len(kinds), 2)
}

// A flood of valid transactions would fill the blocks of kvstore.
func TestKVStoreRefusesSpam(t *testing.T) {
	app := kvstore.NewInMemoryApplication()
	a := New(Options{ChainID: chain, KVStore: true})
	refused := func(raw []byte) {
		res, err := app.CheckTx(t.Context(), &abci.RequestCheckTx{Tx: raw})
		require.NoError(t, err)
		require.NotZero(t, res.Code, "%q", raw)
	}
	random := rand.New(rand.NewPCG(1, 3))
	for range 1000 {
		refused(a.invalid(random))
	}
	refused(make([]byte, spamLong))
}

// The messages of nonsense are well-formed.
func TestNonsenseIsWellFormed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for n := range 80 {
		channel, message := nonsense(n, random)
		require.Contains(t, channels, channel)
		encoded, err := proto.Marshal(message)
		require.NoError(t, err)
		if len(encoded) > 0 {
			require.NoError(t, proto.Unmarshal(encoded, proto.Clone(message)))
		}
	}
	b := raw("anything")
	encoded, err := proto.Marshal(&b)
	require.NoError(t, err)
	require.Equal(t, "anything", string(encoded))
}

// hears is a peer that counts the messages sent to it.
type hears struct {
	p2p.Peer
	mu   sync.Mutex
	got  map[byte]int
	done chan struct{} // closed when enough have come
	once sync.Once
}

func (h *hears) TrySend(e p2p.Envelope) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.got[e.ChannelID]++; h.got[e.ChannelID] == 10 {
		h.once.Do(func() { close(h.done) })
	}
	return true
}

func TestMessages(t *testing.T) {
	for _, mode := range []liar.Mode{liar.Babble, liar.Spam} {
		ctx, cancel := context.WithCancel(t.Context())
		peer := &hears{got: map[byte]int{}, done: make(chan struct{})}
		a := New(Options{Set: liar.Set{mode}, ChainID: chain, Peers: func() []p2p.Peer { return []p2p.Peer{peer} }})
		go func() {
			<-peer.done
			cancel()
		}()
		a.Run(ctx)
		require.NotZero(t, a.messages.Load())
		require.Equal(t, mode == liar.Spam, a.txs.Load() > 0)
	}
}

// victim counts requests and connections, and ends the attack after enough of them.
type victim struct {
	mu     sync.Mutex
	counts map[string]int
	enough func(map[string]int) bool
	cancel context.CancelFunc
}

func (v *victim) count(what string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.counts[what]++
	if v.enough(v.counts) {
		v.cancel()
	}
}

func TestFlood(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	v := &victim{counts: map[string]int{}, cancel: cancel, enough: func(c map[string]int) bool { return c["request"] > 500 && c["cancelled"] > 5 }}
	server, err := tcp.Listen("127.0.0.1:0", tcp.Options{
		Key: transporttest.Key(1), ChainID: chain,
		Handler: transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			v.count("request")
			if r.Method == liar.MethodPeers {
				// the calls that wait must not occupy all workers
				waits, over := context.WithTimeout(ctx, 100*time.Millisecond)
				defer over()
				<-waits.Done()
				if ctx.Err() != nil {
					v.count("cancelled")
				}
				return nil, transport.ErrGone
			}
			return make([]byte, 20), nil
		}),
	})
	require.NoError(t, err)
	defer server.Close()
	a := New(Options{Set: liar.Set{liar.Flood}, ChainID: chain, Targets: []Target{{Transport: server.Addr().String()}}})
	a.Run(ctx)
	require.Greater(t, a.requests.Load(), int64(500))
	require.NotZero(t, a.answers.Load())
}

// Sockets are opened in every mode, every kind of garbage arrives, and all sockets are closed when
// the attack is over.
func TestSockets(t *testing.T) {
	for _, mode := range []liar.Mode{liar.Connect, liar.Garbage} {
		ctx, cancel := context.WithCancel(t.Context())
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		v := &victim{counts: map[string]int{}, cancel: cancel, enough: func(c map[string]int) bool { return c["socket"] >= 30 }}
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				v.count("socket")
				wg.Go(func() {
					defer c.Close()
					n, _ := io.Copy(io.Discard, c)
					if n > 0 {
						v.count("bytes")
					}
				})
			}
		})
		a := New(Options{Set: liar.Set{mode}, RPC: []string{l.Addr().String()}})
		a.Run(ctx)
		require.NoError(t, l.Close())
		wg.Wait() // every socket has been closed by the other side
		require.NotZero(t, a.connects.Load())
		require.NotZero(t, v.counts["bytes"])
	}
}

func TestGarbageIsNoHandshake(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	require.Equal(t, byte(22), clientHello()[0], "a TLS handshake record")
	for kind := range 70 {
		garbage := makeGarbage(kind, random)
		require.NotEmpty(t, garbage)
		require.LessOrEqual(t, len(garbage), 2*longHeader)
	}
}
