package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/tx"
)

// ErrLimits: a setting is too small for the largest transaction, so some keys could never be
// written.
var ErrLimits = errors.New("too low for the largest value (1 MiB)")

const (
	// snapshotDiscovery is how long CometBFT's state sync waits for snapshots before it asks the
	// RPC servers for headers. Its light client keeps connections open, and does not repeat a
	// request that fails because the server closes the connection at that moment. RPC servers close
	// one after 10 s without a request (rpcserver.Config.ReadTimeout), which is two of the shortest
	// waits that CometBFT accepts (5 s): a joiner that found a snapshot at the second try then
	// failed.
	snapshotDiscovery = 6 * time.Second

	// rpcEnvelope is the size of a JSON-RPC request around the transaction, which is in base64.
	rpcEnvelope = 1024

	// GRPCMessageBytes is gRPC's default limit of received messages, which CometBFT's client and
	// server use.
	GRPCMessageBytes = 4 << 20
	// GRPCEnvelope is the part of a message reserved for the data around a chunk or a block's
	// transactions: header, votes of the last commit, misbehaviour, and tags and lengths of many
	// small transactions.
	GRPCEnvelope = 256 << 10
)

// CheckLimits checks that the limits of config.toml fit the largest transaction. The error matches
// ErrLimits and ErrInvalid, and has the setting's name and the required value.
func CheckLimits(c *cfg.Config) error { return Invalid(checkLimits(c)) }

func checkLimits(c *cfg.Config) error {
	if need := int64(base64.StdEncoding.EncodedLen(tx.MaxBytes) + rpcEnvelope); c.RPC.MaxBodyBytes < need {
		return fmt.Errorf("rpc.max_body_bytes = %d is %w, sent in base64: set it to %d or more", c.RPC.MaxBodyBytes, ErrLimits, need)
	}
	if c.Mempool.MaxTxBytes < tx.MaxBytes {
		return fmt.Errorf("mempool.max_tx_bytes = %d is %w: set it to %d or more", c.Mempool.MaxTxBytes, ErrLimits, tx.MaxBytes)
	}
	if c.Mempool.MaxTxsBytes < tx.MaxBytes {
		return fmt.Errorf("mempool.max_txs_bytes = %d is %w: set it to %d or more", c.Mempool.MaxTxsBytes, ErrLimits, tx.MaxBytes)
	}
	if c.Mempool.Type == cfg.MempoolTypeApp {
		return fmt.Errorf("mempool.type = %q would lose every transaction: Starling needs CometBFT's mempool, set it to %q", c.Mempool.Type, cfg.MempoolTypeFlood)
	}
	return nil
}

// CheckBlockLimits checks that the genesis consensus parameters fit the largest transaction. It
// refuses key types and vote extensions that Starling does not support.
func CheckBlockLimits(doc *cmttypes.GenesisDoc) error {
	params := doc.ConsensusParams
	maxBytes := params.Block.MaxBytes
	if maxBytes == -1 {
		maxBytes = cmttypes.MaxBlockSizeBytes
	}
	// types.MaxDataBytes: the space for transactions in a block, without header, commit and
	// evidence.
	need := cmttypes.ComputeProtoSizeForTxs([]cmttypes.Tx{make([]byte, tx.MaxBytes)}) + cmttypes.MaxOverheadForBlock +
		cmttypes.MaxHeaderBytes + cmttypes.MaxCommitBytes(len(doc.Validators)) + params.Evidence.MaxBytes
	if maxBytes < need {
		return fmt.Errorf("genesis: consensus_params.block.max_bytes = %d is %w with evidence.max_bytes = %d: the network's genesis needs %d or more",
			maxBytes, ErrLimits, params.Evidence.MaxBytes, need)
	}
	if !slices.Equal(params.Validator.PubKeyTypes, []string{cmttypes.ABCIPubKeyTypeEd25519}) {
		return fmt.Errorf("genesis: consensus_params.validator.pub_key_types = %v: Starling's validators have ed25519 keys only", params.Validator.PubKeyTypes)
	}
	if params.ABCI.VoteExtensionsEnableHeight != 0 {
		return errors.New("genesis: consensus_params.abci.vote_extensions_enable_height must be 0: Starling has no vote extensions")
	}
	return nil
}
