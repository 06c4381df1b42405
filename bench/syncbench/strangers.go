package syncbench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/light/provider"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/tx"
)

// ShardedKinds are the attacks on a sharded network. All attackers are strangers: no node's
// configuration names them. Only quota has an account with a right.
//
//	claims     20 peers that claim a far height, and are busy after 9.9 s for every block
//	trickle    8 identities per storage node that begin updates of many heights and never end them
//	givers     20 peers that send storage nodes' true answers 29 s late
//	manifests  requests for manifests of tiny pieces of chunks, 8 at a time per storage node
//	uppers     requests for the deepest upper tree, 16 at a time per storage node
//	accounts   transactions of 8,192 new accounts without rights, signed before, which all
//	           validators get again and again, as fast as they take them
//	silent     20 peers that claim the storage nodes' ranges, and never send witnesses or upper trees
//	watchers   200 watchers per validator, each with a prefix of another length
//	blocks     requests for light blocks and long ranges of headers, also of heights that do not
//	           exist, 16 at a time per validator
//	evidence   reports of attacks that did not happen, with commits to verify, 16 at a time per
//	           validator
//	quota      full blocks of an account with a right to all keys and a large quota: it puts and
//	           deletes keys of 4,096 bytes, requires that others are absent, and reads large values
//
// A fork has no kind, because it takes a third of the power: see TestForkStaysAnAlarm. trickle is
// the kind for updates that never end.
//
// The peers of claims, givers and silent are advertised by a relay that all nodes know, as
// validators advertise the addresses that they get from CometBFT's peers.
var ShardedKinds = []string{"claims", "trickle", "givers", "manifests", "uppers", "accounts", "silent", "watchers", "blocks", "evidence", "quota"}

const (
	advertised     = 20            // peers of claims, givers and silent
	claimedHeight  = 1_000_000_000 // far above every chain of a benchmark
	busyAfter      = 9900 * time.Millisecond
	giveAfter      = 29 * time.Second // a request ends after 30 s
	maxForwarded   = 64 << 20
	trickleEvery   = 250 * time.Millisecond
	trickleAhead   = 60 // heights of a storage node's 64
	trickleNear    = 2  // heights whose updates get more than one byte
	trickleBytes   = 24 << 10
	trickleTotal   = 128 << 20
	deepest        = 16   // a storage node sends no deeper upper tree
	newAccounts    = 8192 // twice a validator's places for transactions that it cannot check yet
	accountsBatch  = 10   // CometBFT's default limit of requests in a batch
	accountsAtOnce = 4    // batches per validator
	tinyPiece      = 64
	watchersAHost  = 25
	shortestPrefix = len(shardedPrefix) + 1
)

// victims are the nodes of a sharded network, as its attackers know them.
type victims struct {
	Storage    []string `json:"storage"`    // transports: ID@host:port
	Validators []string `json:"validators"` // transports
	RPCs       []string `json:"rpcs"`       // of the validators
}

// strangers runs the attackers of a sharded network.
type strangers struct {
	relay  *server
	listed atomic.Pointer[[]transport.Address] // advertised by the relay
	end    func() error                        // stops the attack; nil: there is none

	signed     [][]byte     // transactions of accounts; nil until prepare
	sent, busy atomic.Int64 // transactions that validators have answered, and those refused as busy
}

// prepare signs the transactions of an attack, which takes a second or so of processor time.
func (s *strangers) prepare(kind string) (err error) {
	if kind != "accounts" && kind != mixed || s.signed != nil {
		return nil
	}
	s.signed = make([][]byte, newAccounts)
	for i := range s.signed {
		body := &tx.Body{Operations: []tx.Operation{tx.NewPut(shardedKey(i), []byte("stranger"))}}
		if s.signed[i], err = tx.Sign(ed25519.GenPrivKey(), network.ChainID, body); err != nil {
			return err
		}
	}
	return nil
}

// openStrangers starts the relay.
func openStrangers() (*strangers, error) {
	s := &strangers{relay: &server{
		snapshots: statesync.NewManager(statesync.Options{Interval: servedHeight, Keep: 1}), mux: new(transport.Mux), target: Target{ChainID: network.ChainID},
	}}
	serve.New(serve.Options{Snapshots: s.relay.snapshots, Peers: s.peers}).Register(s.relay.mux)
	return s, s.relay.listenOn(strangerHost(0), tcp.Options{}, nil)
}

func (s *strangers) peers() []transport.Address {
	if list := s.listed.Load(); list != nil {
		return *list
	}
	return nil
}

// strangerHost returns the loopback address of an attacker's host.
func strangerHost(i int) string { return fmt.Sprintf("127.0.%d.%d", 1+i/250, 1+i%250) }

func (s *strangers) close() error { return errors.Join(s.retreat(), s.relay.close()) }

// retreat stops the attack.
func (s *strangers) retreat() (err error) {
	if s.end != nil {
		err = s.end()
	}
	s.end = nil
	s.listed.Store(nil)
	return err
}

// attack stops the attack, and starts one of another kind; "": none.
func (s *strangers) attack(kind string, v victims) error {
	if err := s.retreat(); err != nil || kind == "" {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	listening := &server{
		snapshots: statesync.NewManager(statesync.Options{Interval: servedHeight, Keep: 1}), mux: new(transport.Mux), target: Target{ChainID: network.ChainID},
	}
	s.end = func() error {
		cancel()
		err := listening.close()
		all.Wait()
		return err
	}
	host := 1
	for _, each := range ShardedKinds {
		if each != kind && kind != mixed {
			continue
		}
		if err := listens(ctx, each, v, listening, &host); err != nil {
			return err
		}
		for _, visit := range s.visits(each, v) {
			from := strangerHost(host)
			host++
			all.Go(func() {
				for ctx.Err() == nil {
					_ = visit(ctx, from) // reconnect after every disconnect
					select {
					case <-ctx.Done():
					case <-time.After(comeBack):
					}
				}
			})
		}
	}
	list, err := listening.target.addresses()
	s.listed.Store(&list)
	return err
}

// listens starts the peers of a kind that others dial, if it has some. host is the next free host.
func listens(ctx context.Context, kind string, v victims, s *server, host *int) error {
	var handler func(i int) transport.Handler
	switch kind {
	case "claims":
		handler = func(int) transport.Handler { return transport.HandlerFunc(claim) }
	case "givers":
		handler = func(i int) transport.Handler {
			return &forwarder{to: v.Storage[i%len(v.Storage)], ctx: ctx, delay: giveAfter}
		}
	case "silent":
		handler = func(i int) transport.Handler { return &forwarder{to: v.Storage[i%len(v.Storage)], ctx: ctx} }
	default:
		return nil
	}
	for i := range advertised {
		if i%peersAHost == 0 {
			*host++
		}
		if err := s.listenOn(strangerHost(*host), tcp.Options{}, func(transport.Handler) transport.Handler { return handler(i) }); err != nil {
			return err
		}
	}
	*host++
	return nil
}

// claim answers as a peer with a chain that does not exist.
func claim(ctx context.Context, r transport.Request) ([]byte, error) {
	switch r.Method {
	case protocol.MethodStatus:
		return protocol.Status{Base: 1, Height: claimedHeight}.Encode(), nil
	case protocol.MethodPeers:
		return protocol.EncodePeers(nil), nil
	}
	return nil, after(ctx, busyAfter, transport.ErrBusy)
}

// after returns err after a delay, or at the end of ctx.
func after(ctx context.Context, delay time.Duration, err error) error {
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	return err
}

// forwarder sends the answers of a storage node: small ones at once, so that it seems to have the
// ranges; the others after a delay, or never.
type forwarder struct {
	to    string
	ctx   context.Context //nolint:containedctx // of the attack
	delay time.Duration   // 0: witnesses and upper trees never

	mu   sync.Mutex
	conn transport.Conn // nil: none; guarded by mu
}

// Serve implements transport.Handler.
func (f *forwarder) Serve(ctx context.Context, r transport.Request) ([]byte, error) {
	switch r.Method {
	case protocol.MethodPeers:
		return protocol.EncodePeers(nil), nil
	case protocol.MethodStatus, protocol.MethodCommitment, protocol.MethodParts, dsm.MethodRanges, dsm.MethodMap:
	default:
		if f.delay == 0 {
			<-ctx.Done()
			return nil, transport.ErrBusy
		}
		_ = after(ctx, f.delay, nil)
	}
	conn, err := f.connect(ctx)
	if err != nil {
		return nil, transport.ErrBusy
	}
	b, err := conn.Call(ctx, transport.Call{Method: r.Method, Body: r.Body, Max: maxForwarded})
	if errors.Is(err, transport.ErrClosed) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.conn = nil
	}
	return b, err
}

func (f *forwarder) connect(ctx context.Context) (transport.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		return f.conn, nil
	}
	t := targetAt(f.to)
	a, err := t.addresses()
	if err != nil {
		return nil, err
	}
	d, err := newDialer(t)
	if err != nil {
		return nil, err
	}
	if f.conn, err = d.Dial(ctx, a[0]); err != nil {
		return nil, err
	}
	conn := f.conn
	context.AfterFunc(f.ctx, func() { _ = conn.Close() })
	return conn, nil
}

func targetAt(address string) Target {
	return Target{ChainID: network.ChainID, Peers: []string{address}}
}

// visits returns what the attackers of a kind do that dial; each has a host of its own, and returns
// when it is disconnected.
func (s *strangers) visits(kind string, v victims) (all []func(ctx context.Context, host string) error) {
	dialling := func(victims []string, attackers int, do func(context.Context, transport.Conn) error) {
		for _, address := range victims {
			for range attackers {
				all = append(all, func(ctx context.Context, host string) error { return connected(ctx, host, targetAt(address), nil, do) })
			}
		}
	}
	calling := func(hosts, callers int, do func(ctx context.Context, rpc *rpchttp.HTTP, caller int) error) {
		for _, url := range v.RPCs {
			for h := range hosts {
				all = append(all, func(ctx context.Context, host string) error {
					rpc, err := rpcFrom(host, url)
					if err != nil {
						return err
					}
					var wg sync.WaitGroup
					for i := range callers {
						wg.Go(func() { _ = do(ctx, rpc, h*callers+i) }) // the visit is repeated
					}
					wg.Wait()
					return nil
				})
			}
		}
	}
	switch kind {
	case "trickle":
		dialling(v.Storage, 8, trickle)
	case "manifests":
		dialling(v.Storage, 2, func(ctx context.Context, conn transport.Conn) error { return atOnce(ctx, 4, conn, subManifest) })
	case "uppers":
		dialling(v.Storage, 4, func(ctx context.Context, conn transport.Conn) error { return atOnce(ctx, 4, conn, upper) })
	case "blocks":
		dialling(v.Validators, 4, func(ctx context.Context, conn transport.Conn) error { return atOnce(ctx, 4, conn, lightBlocks) })
	case "evidence":
		dialling(v.Validators, 4, func(ctx context.Context, conn transport.Conn) error { return atOnce(ctx, 4, conn, falseEvidence) })
	case "accounts":
		calling(1, accountsAtOnce, s.sendSigned)
	case "quota":
		all = append(all, func(ctx context.Context, host string) error { return s.spendQuota(ctx, host, v.RPCs[0]) })
	case "watchers":
		calling(8, watchersAHost, watchLong)
	}
	return all
}

// atOnce repeats a request n times at once, until one fails.
func atOnce(ctx context.Context, n int, conn transport.Conn, request func(context.Context, transport.Conn) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			for errs[i] == nil && ctx.Err() == nil {
				if errs[i] = request(ctx, conn); errors.Is(errs[i], transport.ErrBusy) || errors.Is(errs[i], transport.ErrGone) {
					errs[i] = after(ctx, comeBack, nil)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// upper requests upper trees of one height until the storage node does not serve it any more.
func upper(ctx context.Context, conn transport.Conn) error {
	claims, err := rangemap.Claims(ctx, conn)
	if err != nil || len(claims) == 0 {
		return errors.Join(err, after(ctx, comeBack, nil))
	}
	q := dsm.UpperRequest{Height: claims[0].Newest, Depth: deepest}
	for err == nil {
		_, err = conn.Call(ctx, transport.Call{Method: dsm.MethodUpper, Body: q.Encode(), Max: maxForwarded})
	}
	return err
}

// subManifest requests the pieces of a random chunk of the newest snapshot.
func subManifest(ctx context.Context, conn transport.Conn) error {
	height, err := newestSnapshot(ctx, conn)
	if err != nil || height == 0 {
		return errors.Join(err, after(ctx, comeBack, nil))
	}
	const chunks = 64
	for range 100 {
		q := protocol.SubManifestRequest{Height: height, K: mathrand.Uint32N(chunks), Limit: tinyPiece} //nolint:gosec // not used for security
		_, err := conn.Call(ctx, transport.Call{Method: protocol.MethodSubManifest, Body: q.Encode(), Max: maxForwarded})
		if err != nil && !errors.Is(err, transport.ErrGone) && !errors.Is(err, transport.ErrRefused) {
			return err
		}
	}
	return nil
}

// lightBlocks requests light blocks and ranges of headers of random heights. A third of the
// heights do not exist.
func lightBlocks(ctx context.Context, conn transport.Conn) error {
	newest, err := lightblocks.NewProvider(network.ChainID, conn).LightBlock(ctx, 0)
	if err != nil {
		return unserved(err)
	}
	for range 100 {
		height := 1 + mathrand.Int64N(newest.Height*3/2) //nolint:gosec // not used for security
		body, method := binary.BigEndian.AppendUint64(nil, uint64(height)), lightblocks.MethodLightBlock
		if mathrand.IntN(2) == 0 { //nolint:gosec // not used for security
			body, method = binary.BigEndian.AppendUint16(body, lightblocks.MaxHeaders), lightblocks.MethodHeaders
		}
		_, err := conn.Call(ctx, transport.Call{Method: method, Body: body, Max: lightblocks.MaxLightBlock})
		if err != nil && !errors.Is(err, transport.ErrGone) {
			return err
		}
	}
	return nil
}

// falseEvidence reports true blocks as those of an attack. A node verifies their signatures before
// it sees that they do not conflict with its own.
func falseEvidence(ctx context.Context, conn transport.Conn) error {
	p := lightblocks.NewProvider(network.ChainID, conn)
	newest, err := p.LightBlock(ctx, 0)
	if err != nil {
		return unserved(err)
	}
	common, err := p.LightBlock(ctx, max(1, newest.Height-2))
	if err != nil {
		return unserved(err)
	}
	block, err := p.LightBlock(ctx, max(1, newest.Height-1))
	if err != nil {
		return unserved(err)
	}
	for range 100 {
		err := p.ReportEvidence(ctx, &types.LightClientAttackEvidence{
			ConflictingBlock: block, CommonHeight: common.Height, TotalVotingPower: common.ValidatorSet.TotalVotingPower(), Timestamp: common.Time,
		})
		if err != nil && !errors.Is(err, transport.ErrRefused) {
			return err
		}
	}
	return nil
}

// unserved returns an error after which atOnce tries again, if a Provider has no answer.
func unserved(err error) error {
	if errors.Is(err, provider.ErrNoResponse) || errors.Is(err, provider.ErrLightBlockNotFound) {
		return transport.ErrBusy
	}
	return err
}

// trickle begins updates of all heights that a storage node accepts, with one byte each. The
// nearest ones get more bytes, above the rate at which a storage node gives up.
func trickle(ctx context.Context, conn transport.Conn) error {
	sent := map[int64]uint32{} // bytes by height; a refused height is not tried again
	refused := map[int64]bool{}
	part := make([]byte, trickleBytes)
	var salt [32]byte
	_, _ = rand.Read(salt[:]) // never fails
	for every := time.NewTicker(trickleEvery); ; {
		claims, err := rangemap.Claims(ctx, conn)
		if err != nil {
			every.Stop()
			return err
		}
		for _, c := range claims {
			next := max(c.Needs, c.Durable+1)
			for h := next; h < next+trickleAhead; h++ {
				n := 1
				if h < next+trickleNear {
					n = trickleBytes
				} else if sent[h] > 0 {
					continue
				}
				if refused[h] {
					continue
				}
				p := dsm.UpdatePart{Height: h, Range: c.Range, Total: trickleTotal, Offset: sent[h], Sum: salt, Part: part[:n]}
				binary.BigEndian.PutUint64(p.Sum[:], uint64(h))
				_, err := conn.Call(ctx, transport.Call{Method: dsm.MethodUpdate, Body: p.Encode(), Max: dsm.UpdateAnswerBytes})
				refused[h], sent[h] = err != nil, sent[h]+uint32(n)
			}
		}
		select {
		case <-ctx.Done():
			every.Stop()
			return ctx.Err()
		case <-every.C:
		}
	}
}

// rpcFrom returns an RPC client with an address of its own.
func rpcFrom(host, url string) (*rpchttp.HTTP, error) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	return rpchttp.NewWithClient(url, "/websocket", &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", address)
			},
			MaxIdleConnsPerHost: watchersAHost, IdleConnTimeout: 5 * time.Second,
		},
	})
}

// sendSigned sends the signed transactions in batches, again and again. The callers of a node share
// them, and nodes send each other what they accept.
func (s *strangers) sendSigned(ctx context.Context, rpc *rpchttp.HTTP, caller int) error {
	for at := caller * newAccounts / accountsAtOnce; ctx.Err() == nil; at += accountsBatch {
		batch := rpc.NewBatch()
		for i := range accountsBatch {
			if _, err := batch.BroadcastTxSync(ctx, s.signed[(at+i)%newAccounts]); err != nil {
				return err
			}
		}
		answers, err := batch.Send(ctx)
		refused := new(rpctypes.RPCError)
		switch {
		case errors.As(err, &refused): // the node has some of them already
		case err != nil:
			_ = after(ctx, comeBack, nil)
			continue
		}
		s.sent.Add(accountsBatch)
		for _, a := range answers {
			if r, is := a.(*ctypes.ResultBroadcastTx); is && r.Code == uint32(tx.CodeBusy) {
				s.busy.Add(1)
			}
		}
	}
	return ctx.Err()
}

// watchLong watches a prefix whose length no other watcher of the node has.
func watchLong(ctx context.Context, rpc *rpchttp.HTTP, caller int) error {
	prefix := append([]byte(shardedPrefix), make([]byte, shortestPrefix+caller-len(shardedPrefix))...)
	q := event.Request{Keys: event.Keys{Start: prefix, End: client.PrefixEnd(prefix)}, WaitMS: 5000}
	for ctx.Err() == nil {
		if _, err := rpc.ABCIQuery(ctx, event.Path, q.Encode()); err != nil {
			return err
		}
	}
	return ctx.Err()
}
