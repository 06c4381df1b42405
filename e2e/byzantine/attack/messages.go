package attack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cometbft/cometbft/blocksync"
	"github.com/cometbft/cometbft/consensus"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/evidence"
	"github.com/cometbft/cometbft/mempool"
	"github.com/cometbft/cometbft/p2p"
	cmtblocksync "github.com/cometbft/cometbft/proto/tendermint/blocksync"
	cmtconsensus "github.com/cometbft/cometbft/proto/tendermint/consensus"
	cmtcrypto "github.com/cometbft/cometbft/proto/tendermint/crypto"
	cmtmempool "github.com/cometbft/cometbft/proto/tendermint/mempool"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/statesync"
	"github.com/cosmos/gogoproto/proto"
	"golang.org/x/time/rate"

	"github.com/starling-kv/starling/tx"
)

// channels are the channels of p2p: CometBFT's, and ours (node, addressChannel).
var channels = []byte{
	consensus.StateChannel, consensus.DataChannel, consensus.VoteChannel, consensus.VoteSetBitsChannel, mempool.MempoolChannel,
	evidence.EvidenceChannel, blocksync.BlocksyncChannel, statesync.SnapshotChannel, statesync.ChunkChannel, 0x7a,
}

// raw is a message with arbitrary bytes.
type raw []byte

func (*raw) Reset()                     {}
func (r *raw) String() string           { return fmt.Sprintf("%x", []byte(*r)) }
func (*raw) ProtoMessage()              {}
func (r *raw) Marshal() ([]byte, error) { return *r, nil }

// everyPeer calls send for each peer, at a pace, until ctx ends.
func (a *Attack) everyPeer(ctx context.Context, perSecond rate.Limit, send func(n int, peer p2p.Peer)) {
	for n, pace := 0, rate.NewLimiter(perSecond, 1); pace.Wait(ctx) == nil; n++ {
		for _, peer := range a.o.Peers() {
			send(n, peer)
		}
	}
}

// One of every garbageEvery messages of Babble cannot be decoded, for which
// CometBFT drops the peer.
const garbageEvery = 100

// babble sends well-formed messages without meaning, and sometimes one that cannot be decoded.
// CometBFT drops a peer that sends one of those; the node dials again.
func (a *Attack) babble(ctx context.Context) {
	random := rand.New(rand.NewPCG(a.o.Seed, 2))
	a.everyPeer(ctx, babbleRate, func(n int, peer p2p.Peer) {
		channel, message := nonsense(n, random)
		if n%garbageEvery == garbageEvery-1 {
			b := raw(randomBytes(random, 1+random.IntN(200)))
			channel, message = channels[random.IntN(len(channels))], &b
		}
		if peer.TrySend(p2p.Envelope{ChannelID: channel, Message: message}) {
			a.messages.Add(1)
		}
	})
}

// nonsense returns a message that passes CometBFT's own checks of its form.
func nonsense(n int, random *rand.Rand) (byte, proto.Message) {
	height, round := random.Int64N(1<<40)+1, random.Int32N(1<<20)
	id := cmtproto.BlockID{Hash: randomBytes(random, 32), PartSetHeader: cmtproto.PartSetHeader{Total: 1, Hash: randomBytes(random, 32)}}
	switch n % 8 {
	case 0:
		return consensus.StateChannel, &cmtconsensus.NewRoundStep{Height: height, Round: round, Step: 1 + random.Uint32N(8), LastCommitRound: 0}
	case 1:
		return consensus.StateChannel, &cmtconsensus.HasVote{Height: height, Round: round, Type: cmtproto.PrevoteType, Index: random.Int32N(1000)}
	case 2:
		return consensus.VoteChannel, &cmtconsensus.Vote{Vote: &cmtproto.Vote{
			Type: cmtproto.PrecommitType, Height: height, Round: round, BlockID: id, Timestamp: time.Unix(1<<30, 0),
			ValidatorAddress: randomBytes(random, 20), ValidatorIndex: random.Int32N(4), Signature: randomBytes(random, 64),
		}}
	case 3:
		return consensus.DataChannel, &cmtconsensus.Proposal{Proposal: cmtproto.Proposal{
			Type: cmtproto.ProposalType, Height: height, Round: round, PolRound: -1, BlockID: id, Timestamp: time.Unix(1<<30, 0),
			Signature: randomBytes(random, 64),
		}}
	case 4:
		part := cmtproto.Part{Index: 0, Bytes: randomBytes(random, 1000), Proof: cmtcrypto.Proof{Total: 1, LeafHash: randomBytes(random, 32)}}
		return consensus.DataChannel, &cmtconsensus.BlockPart{Height: height, Round: round, Part: part}
	case 5:
		return blocksync.BlocksyncChannel, &cmtblocksync.BlockRequest{Height: height}
	case 6:
		return blocksync.BlocksyncChannel, &cmtblocksync.StatusRequest{}
	default:
		return consensus.StateChannel, &cmtconsensus.VoteSetMaj23{Height: height, Round: round, Type: cmtproto.PrevoteType, BlockID: id}
	}
}

const (
	spamBatch = 5   // transactions in each message
	spamValue = 200 // bytes
	// length of a transaction of zero bytes, in every spamLongBy-th message
	spamLong   = 1 << 20
	spamLongBy = 100
)

// spam gossips transactions that no honest node would: each costs its peers a check, most of them a
// check of a signature.
func (a *Attack) spam(ctx context.Context) {
	random := rand.New(rand.NewPCG(a.o.Seed, 3))
	a.everyPeer(ctx, spamRate, func(n int, peer p2p.Peer) {
		var txs [][]byte
		for range spamBatch {
			txs = append(txs, a.invalid(random))
		}
		if n%spamLongBy == 0 {
			txs = [][]byte{make([]byte, spamLong)}
		}
		if peer.TrySend(p2p.Envelope{ChannelID: mempool.MempoolChannel, Message: &cmtmempool.Txs{Txs: txs}}) {
			a.messages.Add(1)
			a.txs.Add(int64(len(txs)))
		}
	})
}

// invalid returns a transaction that the peers refuse: Starling by its form, its signature or its
// nonce, kvstore by its form.
func (a *Attack) invalid(random *rand.Rand) []byte {
	if a.o.KVStore { // it refuses a second "="
		return append([]byte("=="), randomBytes(random, 1+random.IntN(spamValue))...)
	}
	kind := random.IntN(4)
	if kind == 0 {
		return append([]byte{0}, randomBytes(random, 1+random.IntN(spamValue))...)
	}
	chain := a.o.ChainID
	if kind == 1 {
		chain = "another-" + chain[:min(len(chain), 10)]
	}
	key := ed25519.GenPrivKeyFromSecret(randomBytes(random, 8))
	put := tx.NewPut(fmt.Appendf(nil, "spam/%x", randomBytes(random, 8)), randomBytes(random, spamValue))
	body := &tx.Body{Nonce: 1<<40 + random.Uint64N(1<<40), Operations: []tx.Operation{put}}
	signed, err := tx.Sign(key, chain, body)
	if err != nil {
		panic(err) // the body is valid
	}
	if kind == 2 {
		signed[len(signed)-1] ^= 1 // the last byte is the signature's, which follows the body
	}
	return signed
}

func randomBytes(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}
