package app

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/hexruns"
	"github.com/starling-kv/starling/tx"
)

var update = flag.Bool("update", false, "write testdata/blocks.json again")

const vectorsPath = "testdata/blocks.json"

// vectorFile is a chain for other implementations; docs/spec/records.md describes the format.
type vectorFile struct {
	Comment          string            `json:"comment"`
	ChainID          string            `json:"chain_id"`
	InitialHeight    int64             `json:"initial_height"`
	BlockMaxBytes    int64             `json:"block_max_bytes"`
	EvidenceMaxBytes int64             `json:"evidence_max_bytes"`
	Validators       []vectorValidator `json:"validators"`
	AppState         json.RawMessage   `json:"app_state"`
	GenesisAppHash   string            `json:"genesis_app_hash"`
	GenesisState     []vectorRecord    `json:"genesis_state"`
	Blocks           []vectorBlock     `json:"blocks"`
	// Bytes are in runs (see internal/hexruns). These chains have no MoreChains of their own.
	MoreChains []*vectorFile `json:"more_chains,omitempty"`
}

type vectorValidator struct {
	PublicKey string `json:"public_key"`
	Power     int64  `json:"power"`
}

type vectorRecord struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type vectorBlock struct {
	Comment string `json:"comment"`
	Height  int64  `json:"height"`
	// The votes for the block before; empty if there is no block before.
	LastCommit       []vectorVote      `json:"last_commit,omitempty"`
	Txs              []string          `json:"txs"`
	Results          []vectorResult    `json:"results"`
	ValidatorUpdates []vectorValidator `json:"validator_updates"`
	// App version of the following blocks, if it changes.
	AppVersion uint64         `json:"app_version,omitempty"`
	AppHash    string         `json:"app_hash"`
	State      []vectorRecord `json:"state"`
}

type vectorVote struct {
	Address string               `json:"address"`
	Flag    cmtproto.BlockIDFlag `json:"block_id_flag"`
}

type vectorResult struct {
	Code   uint32        `json:"code"`
	Data   string        `json:"data"`
	Events []vectorEvent `json:"events,omitempty"`
}

type vectorEvent struct {
	Key  string `json:"key"`
	Kind string `json:"kind"`
}

// TestVectors replays the chains of testdata/blocks.json, whose transactions are given as bytes.
func TestVectors(t *testing.T) {
	if *update {
		written, err := json.MarshalIndent(makeVectors(t), "", " ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(vectorsPath, append(written, '\n'), 0o644))
	}
	raw, err := os.ReadFile(vectorsPath)
	require.NoError(t, err)
	var file vectorFile
	require.NoError(t, json.Unmarshal(raw, &file))
	for i, want := range append([]*vectorFile{&file}, file.MoreChains...) {
		got := *want
		got.Blocks = slices.Clone(want.Blocks)
		blocks := make([][][]byte, len(want.Blocks))
		for i, b := range want.Blocks {
			for _, text := range b.Txs {
				blocks[i] = append(blocks[i], parseRuns(t, text))
			}
		}
		if i == 0 {
			replay(t, &got, blocks, hex.EncodeToString)
		} else {
			replay(t, &got, blocks, hexruns.Encode)
		}
		require.Equal(t, *want, got)
	}
}

// replay executes blocks and fills in the results.
func replay(t *testing.T, file *vectorFile, blocks [][][]byte, text func([]byte) string) {
	req := initRequest(string(file.AppState))
	req.ChainId, req.InitialHeight = file.ChainID, file.InitialHeight
	req.ConsensusParams.Block.MaxBytes, req.ConsensusParams.Evidence.MaxBytes = file.BlockMaxBytes, file.EvidenceMaxBytes
	req.Validators = nil
	for _, v := range file.Validators {
		publicKey, err := hex.DecodeString(v.PublicKey)
		require.NoError(t, err)
		req.Validators = append(req.Validators, abci.Ed25519ValidatorUpdate(publicKey, v.Power))
	}
	store := &memoryStore{}
	a, err := New(Options{Store: store, NewestVersion: vectorVersions})
	require.NoError(t, err)
	genesis, err := a.InitChain(ctx, req)
	require.NoError(t, err)
	file.GenesisAppHash = hex.EncodeToString(genesis.AppHash)
	file.GenesisState = nil
	for _, kv := range entries(t, a.block.version) {
		file.GenesisState = append(file.GenesisState, vectorRecord{text(kv.Key), text(kv.Value)})
	}
	for i, txs := range blocks {
		b := &file.Blocks[i]
		b.Height = file.InitialHeight + int64(i)
		b.Results, b.ValidatorUpdates, b.State = nil, []vectorValidator{}, nil
		last := abci.CommitInfo{}
		for _, v := range b.LastCommit {
			address, err := hex.DecodeString(v.Address)
			require.NoError(t, err)
			last.Votes = append(last.Votes, abci.VoteInfo{Validator: abci.Validator{Address: address, Power: 1}, BlockIdFlag: v.Flag})
		}
		res := runBlockAfter(t, a, last, txs...)
		for _, r := range res.TxResults {
			result := vectorResult{Code: r.Code, Data: text(r.Data)}
			for _, e := range r.Events {
				key, err := hex.DecodeString(e.Attributes[0].Value)
				require.NoError(t, err)
				result.Events = append(result.Events, vectorEvent{text(key), e.Attributes[1].Value})
			}
			b.Results = append(b.Results, result)
		}
		for _, u := range res.ValidatorUpdates {
			b.ValidatorUpdates = append(b.ValidatorUpdates, vectorValidator{hex.EncodeToString(u.PubKey.GetEd25519()), u.Power})
		}
		b.AppVersion = 0
		if u := res.ConsensusParamUpdates; u != nil {
			b.AppVersion = u.Version.App
		}
		b.AppHash = hex.EncodeToString(res.AppHash)
		_, v := a.Latest()
		defer v.Release()
		for _, kv := range entries(t, v) {
			b.State = append(b.State, vectorRecord{text(kv.Key), text(kv.Value)})
		}
	}
}

// vectorInput is a block to execute.
type vectorInput struct {
	comment string
	txs     [][]byte
	last    abci.CommitInfo
}

// fill executes blocks and writes them and their results into file.
func (file *vectorFile) fill(t *testing.T, blocks []vectorInput, text func([]byte) string) {
	file.Blocks = make([]vectorBlock, len(blocks))
	raw := make([][][]byte, len(blocks))
	for i, b := range blocks {
		file.Blocks[i].Comment, file.Blocks[i].Txs = b.comment, []string{}
		for _, v := range b.last.Votes {
			file.Blocks[i].LastCommit = append(file.Blocks[i].LastCommit, vectorVote{hex.EncodeToString(v.Validator.Address), v.BlockIdFlag})
		}
		for _, tx := range b.txs {
			file.Blocks[i].Txs = append(file.Blocks[i].Txs, text(tx))
		}
		raw[i] = b.txs
	}
	replay(t, file, raw, text)
}

const vectorChain = "vectors-1"

// vectorVersions is the newest app version in the file; the versions differ only in their number.
const vectorVersions = 3

// makeVectors builds a chain in which every code of a transaction occurs, and moreChains.
func makeVectors(t *testing.T) *vectorFile {
	file := &vectorFile{
		Comment:          "A chain of Starling, block by block; docs/spec/records.md explains it. All bytes are in hex.",
		ChainID:          vectorChain,
		InitialHeight:    5,
		BlockMaxBytes:    4 << 20,
		EvidenceMaxBytes: 1 << 20,
		Validators:       []vectorValidator{{hexOf("v1"), 10}, {hexOf("v2"), 7}},
		AppState: json.RawMessage(withAccounts(`{"chunk_bytes": 400, "snapshot_interval": 2, "open": true, "admins": ["@root"],
			"grants": [{"grantee": "@alice", "prefix": "fruit/", "quota": 200000}, {"grantee": "*", "prefix": "board/"},
			           {"grantee": "@bob", "prefix_hex": "ff", "quota": 30}]}`)),
	}
	s := func(name string, nonce uint64, operations ...tx.Operation) []byte {
		return signFor(t, vectorChain, name, nonce, operations...)
	}
	damaged := s("alice", 3, put("fruit/fig", "1"))
	damaged[len(damaged)-1] ^= 1
	big := strings.Repeat("0123456789abcdef", 4096)
	var reads []tx.Operation
	for range ReadBudgetBytes/len(big) + 1 {
		reads = append(reads, read("fruit/big"))
	}
	first := s("alice", 0, put("fruit/apple", "green"), put("fruit/pear", "yellow"))
	none := abci.CommitInfo{}
	blocks := []vectorInput{
		{"an empty block", nil, none},
		{"text and signed transactions; reads see what came before in the block", [][]byte{
			[]byte("city=Lugano"), []byte("lake:Ceresio"), first,
			s("alice", 1, read("fruit/apple"), read("fruit/none"), del("fruit/pear"), del("fruit/none"), read("fruit/pear")),
			s("alice", 2, cas("fruit/apple", "green", "red"), cas("fruit/kiwi", "", "brown"), put("fruit/kiwi", "brown")),
			s("carol", 0, put("board/note", "hello"), read(string(NonceKey(account("alice"))))),
		}, none},
		{"refusals, of each code that does not depend on grants", [][]byte{
			{}, {0xff}, []byte("no separator"), {0, 0x0a, 0},
			forge(t, vectorChain, "alice", 3, put(strings.Repeat("k", 4097), "v")), damaged, signFor(t, "vectors-2", "alice", 3, put("fruit/fig", "1")), first,
			forge(t, vectorChain, "alice", 3, put("\x00x", "v")), []byte("fruit/apple=text"),
			s("alice", 3, put("fruit/fig", "1"), cas("fruit/apple", "green", "blue")),
		}, none},
		{"grants and quotas", [][]byte{
			s("dave", 0, put("d", "1")), s("carol", 1, put("elsewhere", "1")),
			s("bob", 0, put("\xff", strings.Repeat("q", 26))), s("bob", 1, put("\xff\x01", "q")), s("bob", 2, put("\xff", "q"), put("\xff\x01", "q")),
			s("root", 0, grantOp(account("dave"), "d", 0), grantOp(nil, "dd", 9), grantOp(account("bob"), "\xff", 5), revokeOp(nil, "board/")),
			s("dave", 0, put("d", "1")), s("dave", 1, put("dd", "12345")), s("dave", 2, put("dd", "1234")), s("carol", 2, put("board/note", "late")),
			s("alice", 4, grantOp(account("alice"), "", 0)),
		}, none},
		{"admins and validators", [][]byte{
			s("root", 1, validatorOp(account("v3"), 1), validatorOp(account("v1"), 0), validatorOp(account("v2"), 1<<58-1)),
			s("root", 2, validatorOp(account("v4"), 1)), s("root", 3, adminOp(account("root"), true)),
			s("root", 4, adminOp(account("carol"), false), adminOp(account("root"), true)), s("root", 5, grantOp(nil, "", 0)),
			s("carol", 3, revokeOp(nil, "dd"), validatorOp(account("v2"), 5), grantOp(account("root"), "r", 0)),
		}, none},
		{"the read budget of a block", [][]byte{
			s("alice", 5, put("fruit/big", big)), s("alice", 6, reads...), s("alice", 7, del("fruit/big")),
		}, none},
		{"validators that nobody is known to hold", [][]byte{
			s("carol", 4, validatorOp(account("v4"), 3)), s("carol", 5, confirmedOp(account("v4"), 3)),
		}, signedBy("v2", "v3")},
	}
	file.fill(t, blocks, hex.EncodeToString)
	seen := map[uint32]bool{}
	for _, b := range file.Blocks {
		for _, r := range b.Results {
			seen[r.Code] = true
		}
	}
	for code := range uint32(tx.CodeUnconfirmed) + 1 {
		require.True(t, seen[code], "code %d does not occur", code)
	}
	file.MoreChains = moreChains(t)
	return file
}
