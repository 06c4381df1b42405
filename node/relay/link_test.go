package relay

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/consensus"
	cstypes "github.com/cometbft/cometbft/consensus/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	cmtcons "github.com/cometbft/cometbft/proto/tendermint/consensus"
	"github.com/cometbft/cometbft/types"
	"github.com/cosmos/gogoproto/proto"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// pair is a link to a node whose responses the test determines.
type pair struct {
	relay  *Relay
	peer   *fakePeer
	link   *link
	to     *sender
	block  block
	server *transporttest.Listener
	mu     struct {
		sync.Mutex
		answer func(ctx context.Context, m proto.Message) error // nil: accepted
		calls  []proto.Message
		open   int // calls in flight
		most   int
	}
}

// newPair must be called inside a bubble.
func newPair(t *testing.T, faults *transporttest.Faults, path func(transport.Conn) bool) *pair {
	t.Helper()
	p := &pair{peer: newFakePeer(), block: newBlock(t, ed25519.GenPrivKeyFromSecret([]byte("proposer")), 5, 0, 2_000_000)}
	network := new(transporttest.Network)
	var err error
	p.server, err = network.Listen("peer:1", transporttest.Config{ID: p.peer.id(), ChainID: testChain, Handler: transport.HandlerFunc(p.serve)})
	require.NoError(t, err)
	dialer := network.Dialer(transporttest.Config{ID: transporttest.ID(1), ChainID: testChain})
	if faults != nil {
		dialer = &transporttest.Faulty{Dialer: dialer, Seed: seeds.New(t), Faults: func(transport.Address) transporttest.Faults { return *faults }}
	}
	p.relay = New(Options{
		Logger: log.NewNopLogger(), ChainID: testChain, Dialer: dialer, Path: path,
		Address: func(id transport.ID) (transport.Address, bool) {
			return transport.Address{ID: id, HostPort: "peer:1"}, id == p.peer.id()
		},
	})
	p.link = p.relay.newLink(p.peer)
	p.to = &sender{p.peer, p.link}
	return p
}

func (p *pair) close() {
	p.relay.Close()
	p.server.Close()
}

// connect makes the link dial.
func (p *pair) connect() {
	p.link.connect()
	synctest.Wait()
}

func (p *pair) serve(ctx context.Context, r transport.Request) ([]byte, error) {
	message, _, err := decode(r.Body)
	if err != nil || r.Method != Method {
		return nil, transport.ErrRefused
	}
	p.mu.Lock()
	p.mu.calls = append(p.mu.calls, message)
	p.mu.open++
	p.mu.most = max(p.mu.most, p.mu.open)
	answer := p.mu.answer
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.open--
	}()
	if answer == nil {
		return nil, nil
	}
	return nil, answer(ctx, message)
}

func (p *pair) answering(f func(ctx context.Context, m proto.Message) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.answer = f
}

func (p *pair) calls() []proto.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]proto.Message(nil), p.mu.calls...)
}

// sendBlock sends a proposal and its parts like consensus.
func (p *pair) sendBlock(t *testing.T) {
	t.Helper()
	for m := range messages(t, p.block) {
		require.True(t, p.to.Send(envelope(m)))
	}
}

// swallow never answers.
func swallow(ctx context.Context, _ proto.Message) error {
	<-ctx.Done()
	return ctx.Err()
}

// count returns the number of copies of each message of the block.
func (p *pair) count(t *testing.T, some []proto.Message) (proposals int, parts []int) {
	t.Helper()
	parts = make([]int, p.block.parts.Total())
	for _, m := range some {
		switch m := m.(type) {
		case *cmtcons.Proposal:
			proposals++
		case *cmtcons.BlockPart:
			require.True(t, proto.Equal(p.block.partMessage(t, int(m.Part.Index)), m))
			parts[m.Part.Index]++
		default:
			t.Fatalf("%T", m)
		}
	}
	return proposals, parts
}

func messagesOf(list []p2p.Envelope) (messages []proto.Message) {
	for _, e := range list {
		messages = append(messages, e.Message)
	}
	return messages
}

func TestABlockTakesTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		defer p.close()
		p.connect()
		p.answering(func(context.Context, proto.Message) error {
			bubble.Sleep(10 * time.Millisecond)
			return nil
		})
		p.sendBlock(t)
		synctest.Wait()
		bubble.Sleep(time.Second)
		proposals, parts := p.count(t, p.calls())
		require.Equal(t, 1, proposals)
		for _, n := range parts {
			require.Equal(t, 1, n)
		}
		require.Empty(t, p.peer.got())
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Equal(t, maxUnderWay, p.mu.most)
		require.IsType(t, &cmtcons.Proposal{}, p.mu.calls[0])
	})
}

// Parts that a peer reports to have are not sent to it; reports about other heights, rounds and
// nonexistent parts are ignored.
func TestPartsThatAPeerNames(t *testing.T) {
	peer := newFakePeer()
	state := consensus.NewPeerState(peer)
	peer.Set(types.PeerStateKey, state)
	state.ApplyNewRoundStepMessage(&consensus.NewRoundStepMessage{Height: 5, Step: cstypes.RoundStepPropose, LastCommitRound: -1})
	key := ed25519.GenPrivKeyFromSecret([]byte("proposer"))
	b := newBlock(t, key, 5, 0, 9*int(types.BlockPartSizeBytes))
	has := func() string { return state.GetRoundState().ProposalBlockParts.String() }

	note := func(peer *fakePeer, m proto.Message, answer ...byte) { noteParts(peer, m, headerOf(peer, m), answer) }
	note(peer, b.partMessage(t, 0), 1, 0) // its proposal is missing so far
	require.Equal(t, "nil-BitArray", has())
	note(peer, b.proposalMessage())
	require.False(t, state.GetRoundState().Proposal)
	note(peer, b.proposalMessage(), 0b1010, 0)
	require.True(t, state.GetRoundState().Proposal)
	require.Equal(t, "BA{9:_x_x_____}", has())
	note(peer, b.partMessage(t, 0), 0b11, 0b11111111, 0xff, 0xff)
	require.Equal(t, "BA{9:xx_x____x}", has())
	note(peer, newBlock(t, key, 5, 1, 9*int(types.BlockPartSizeBytes)).partMessage(t, 0), 0xff, 1)
	note(peer, newBlock(t, key, 6, 0, 9*int(types.BlockPartSizeBytes)).proposalMessage(), 0xff, 1)
	require.Equal(t, "BA{9:xx_x____x}", has())
	stale := newBlock(t, key, 5, 0, 9).parts.Header() // from before it switched to b
	noteParts(peer, b.partMessage(t, 0), stale, []byte{0xff, 1})
	require.Equal(t, "BA{9:xx_x____x}", has())
	note(newFakePeer(), b.partMessage(t, 0), 1, 0) // consensus has not started for it
}

// Votes and all other messages go over p2p, and so do parts of a block whose proposal the peer may
// not have.
func TestWhatIsNotRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		defer p.close()
		p.connect()
		all := []p2p.Envelope{
			{ChannelID: consensus.VoteChannel, Message: &cmtcons.Vote{}}, {ChannelID: consensus.StateChannel, Message: &cmtcons.HasVote{}},
			envelope(&cmtcons.ProposalPOL{Height: 5}), envelope(p.block.partMessage(t, 0)),
			{ChannelID: consensus.VoteChannel, Message: p.block.proposalMessage()},
		}
		for i, e := range all {
			require.True(t, p.to.Send(e))
			require.Len(t, p.peer.got(), i+1)
			require.True(t, p.to.TrySend(e))
			p.peer.sent = p.peer.sent[:i+1]
		}
		require.Empty(t, p.calls())
	})
}

func TestOnlyOverAPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, func(transport.Conn) bool { return false })
		defer p.close()
		p.connect()
		p.sendBlock(t)
		require.Empty(t, p.calls())
		require.Len(t, p.peer.got(), 1+int(p.block.parts.Total()))
	})
}

// Nothing is lost, and each message goes over p2p once; soon nothing is relayed any more, and later
// the relay is retried.
func TestALinkThatSwallows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		defer p.close()
		p.connect()
		p.answering(func(ctx context.Context, m proto.Message) error {
			if _, is := m.(*cmtcons.Proposal); is {
				return nil
			}
			return swallow(ctx, m)
		})
		began := time.Now()
		p.sendBlock(t)
		require.Less(t, time.Since(began), 5*lateAfter, "of all parts together")
		bubble.Sleep(lateAfter)
		synctest.Wait()
		_, parts := p.count(t, messagesOf(p.peer.got()))
		for _, n := range parts {
			require.Equal(t, 1, n)
		}
		require.Len(t, p.calls(), 1+8+4+2+1)

		// It drops proposals, too: a proposal is delivered when Send returns.
		p.answering(swallow)
		for pause := leastPause; pause < 4*mostPause; pause *= 2 {
			bubble.Sleep(min(pause, mostPause) + time.Millisecond)
			before, began := len(p.calls()), time.Now()
			sent := len(p.peer.got())
			for range 3 {
				require.True(t, p.to.Send(envelope(p.block.proposalMessage())))
			}
			require.Len(t, p.calls(), before+1)
			require.Equal(t, lateAfter, time.Since(began))
			require.Len(t, p.peer.got(), sent+3)
		}

		p.answering(nil)
		bubble.Sleep(mostPause)
		sent := len(p.peer.got())
		for range 10 {
			p.sendBlock(t)
		}
		synctest.Wait()
		require.Len(t, p.peer.got(), sent)
	})
}

func TestAPeerThatRefuses(t *testing.T) {
	for want, calls := range map[error]int{transport.ErrRefused: 1, transport.ErrFailed: 1, transport.ErrGone: 10, transport.ErrBusy: 4} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, nil, nil)
				defer p.close()
				p.connect()
				p.answering(func(context.Context, proto.Message) error { return want })
				for i := range 10 {
					require.True(t, p.to.Send(envelope(p.block.proposalMessage())))
					require.Len(t, p.peer.got(), i+1)
				}
				require.Len(t, p.calls(), calls)
			})
		})
	}
}

// Consensus assumes that the peer has the message: p2p is retried until it accepts it.
func TestP2PThatIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		defer p.close()
		p.connect()
		require.True(t, p.to.Send(envelope(p.block.proposalMessage())))
		p.answering(func(context.Context, proto.Message) error { return transport.ErrFailed })
		p.peer.setFull(true)
		require.True(t, p.to.Send(envelope(p.block.partMessage(t, 1))))
		bubble.Sleep(20 * time.Second)
		p.peer.setFull(false)
		bubble.Sleep(retryAfter)
		synctest.Wait()
		require.Len(t, p.peer.got(), 1)
		// Delivery of a proposal is not assumed before it was accepted.
		p.peer.setFull(true)
		require.False(t, p.to.Send(envelope(p.block.proposalMessage())))
	})
}

// A disconnect ends calls in flight, also while p2p accepts nothing and Send waits.
func TestAPeerThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		defer p.close()
		p.connect()
		require.True(t, p.to.Send(envelope(p.block.proposalMessage())))
		p.answering(swallow)
		p.peer.setFull(true)
		done := make(chan bool)
		go func() {
			for i := range maxUnderWay + 1 {
				p.to.Send(envelope(p.block.partMessage(t, i)))
			}
			close(done)
		}()
		bubble.Sleep(time.Minute)
		select {
		case <-done:
			t.Fatal("more are under way than may be")
		default:
		}
		p.link.end()
		<-done
		synctest.Wait()
		p.link.mu.Lock()
		defer p.link.mu.Unlock()
		require.Nil(t, p.link.mu.conn)
		require.Zero(t, p.link.mu.pace.underWay)
	})
}

// Connections break, and responses come late or never: each message arrives at least once, and over
// p2p at most once.
func TestLinksThatBreak(t *testing.T) {
	for _, faults := range []transporttest.Faults{
		{Loss: 0.1, Delay: 5 * time.Millisecond, Jitter: 50 * time.Millisecond}, {Disconnect: 7}, {Refuse: 0.5, Disconnect: 20, Jitter: 120 * time.Millisecond},
		{Loss: 0.5, Reorder: 0.2},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, &faults, nil)
			defer p.close()
			p.connect()
			for range 20 {
				before, relayed := len(p.peer.got()), len(p.calls())
				p.sendBlock(t)
				bubble.Sleep(3 * time.Second)
				proposals, byP2P := p.count(t, messagesOf(p.peer.got()[before:]))
				more, byRelay := p.count(t, p.calls()[relayed:])
				// A lost call of Faulty never reaches the server.
				require.GreaterOrEqual(t, proposals+more, 1)
				for i := range byP2P {
					require.GreaterOrEqual(t, byP2P[i]+byRelay[i], 1)
					require.LessOrEqual(t, byP2P[i], 1)
				}
			}
		})
	}
}

func TestAnUnknownAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		defer p.close()
		known := p.relay.o.Address
		p.relay.o.Address = func(transport.ID) (transport.Address, bool) { return transport.Address{}, false }
		require.True(t, p.to.Send(envelope(p.block.proposalMessage())))
		require.Len(t, p.peer.got(), 1)
		p.relay.o.Address = known
		require.True(t, p.to.Send(envelope(p.block.proposalMessage()))) // begins to dial
		synctest.Wait()
		require.True(t, p.to.Send(envelope(p.block.proposalMessage())))
		require.Len(t, p.peer.got(), 2)
		require.Len(t, p.calls(), 1)

		// After a break it is dialled again, but not at once.
		p.server.Disconnect()
		synctest.Wait()
		require.True(t, p.to.Send(envelope(p.block.proposalMessage())))
		require.Len(t, p.calls(), 1)
		bubble.Sleep(leastPause)
		require.True(t, p.to.Send(envelope(p.block.proposalMessage())))
		synctest.Wait()
		require.True(t, p.to.Send(envelope(p.block.proposalMessage())))
		require.Len(t, p.calls(), 2)
	})
}

// A closed relay sends nothing and blocks nothing.
func TestAClosedRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		p.connect()
		p.close()
		p.sendBlock(t)
		require.Len(t, p.peer.got(), 1+int(p.block.parts.Total()))
	})
}
