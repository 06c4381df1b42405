package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/hexruns"
	"github.com/starling-kv/starling/tx"
)

func parseRuns(t testing.TB, text string) []byte {
	b, err := hexruns.Decode(text)
	require.NoError(t, err)
	return b
}

// chainScript builds one of moreChains.
type chainScript struct {
	t      *testing.T
	file   *vectorFile
	blocks []vectorInput
	want   []string
	nonces map[string]uint64
}

// at signs with the given nonce.
func (s *chainScript) at(nonce uint64, name string, operations ...tx.Operation) []byte {
	return signFor(s.t, s.file.ChainID, name, nonce, operations...)
}

// by signs with the account's next nonce; the transaction must leave a trace.
func (s *chainScript) by(name string, operations ...tx.Operation) []byte {
	s.nonces[name]++
	return s.at(s.nonces[name]-1, name, operations...)
}

// block appends a block and the codes that its transactions must have.
func (s *chainScript) block(comment, want string, txs ...[]byte) {
	s.after(abci.CommitInfo{}, comment, want, txs...)
}

// after does what block does, for a block with a last commit.
func (s *chainScript) after(last abci.CommitInfo, comment, want string, txs ...[]byte) {
	s.blocks = append(s.blocks, vectorInput{comment, txs, last})
	s.want = append(s.want, want)
}

// text returns a text transaction that writes "text" to key.
func text(key string) []byte { return []byte(key + "=text") }

// moreChains builds chains that distinguish rules that are easily confused: each block has a
// transaction whose result, or trace in the state, differs if a rule is misread.
func moreChains(t *testing.T) []*vectorFile {
	chain := func(comment, id string, maxBytes int64, appState string, write func(*chainScript)) *vectorFile {
		s := &chainScript{t: t, nonces: map[string]uint64{}, file: &vectorFile{
			Comment: comment, ChainID: id, InitialHeight: 1, BlockMaxBytes: maxBytes, EvidenceMaxBytes: 1 << 20,
			Validators: []vectorValidator{{hexOf("v1"), 10}, {hexOf("v2"), 7}},
			AppState:   json.RawMessage(withAccounts(appState)),
		}}
		write(s)
		s.file.fill(t, s.blocks, hexruns.Encode)
		for i, b := range s.file.Blocks {
			var got []string
			for _, r := range b.Results {
				got = append(got, fmt.Sprint(r.Code))
			}
			require.Equal(t, s.want[i], strings.Join(got, " "), "%s: %s", id, b.Comment)
		}
		return s.file
	}
	const roomForThree = 1<<20 + 64<<10 + 3*3400 + 3399
	return []*vectorFile{
		chain("Rights and quotas. No grant to everyone in genesis.", "rights-1", roomForThree, `{"chunk_bytes": 100, "open": true, "admins": ["@root"],
			"grants": [{"grantee": "@alice", "prefix": "q", "quota": 40}, {"grantee": "@bob", "prefix": "b"}]}`, rightsChain),
		chain("Validators and admins. Room for three validators.", "powers-1", roomForThree, `{"chunk_bytes": 1, "admins": ["@root"]}`, powersChain),
		chain("What reads cost. Most of app_state left out.", "reads-1", -1, `{"grants": [{"grantee": "@alice", "prefix": ""}], "admins": null}`, readsChain),
		chain("Upgrades. Versions 2 and 3 have the rules of version 1.", "upgrades-1", roomForThree, `{"chunk_bytes": 100, "admins": ["@root"],
			"grants": [{"grantee": "@alice", "prefix": "a"}]}`, upgradesChain),
		chain("Who signs the blocks.", "signers-1", roomForThree, `{"chunk_bytes": 100, "admins": ["@root"]}`, signersChain),
		chain("Conditions, ranges, if / then / else.", "txns-1", -1, `{"chunk_bytes": 100, "admins": ["@root"], "grants": [{"grantee": "@alice", "prefix": ""},
			{"grantee": "@bob", "prefix": "b", "quota": 60}, {"grantee": "@bob", "prefix_hex": "62ff"}, {"grantee": "*", "prefix": "c"}]}`, txnsChain),
		chain("Several admins together.", "together-1", roomForThree, `{"chunk_bytes": 100, "admins": ["@root", "@ann", "@carol"], "admin_threshold": 2,
			"grants": [{"grantee": "@alice", "prefix": "a"}]}`, togetherChain),
	}
}

func rightsChain(s *chainScript) {
	long := strings.Repeat("q", 60)
	s.block("checks in order: the sender is an admin or holds a grant; the nonce; the rights", "5 5 0 5 0 4 4 5 5 0",
		// No grant, no trace, even with a wrong nonce.
		s.at(0, "dave", read("x")), s.at(7, "dave", read("x")),
		// An admin needs no grant.
		s.by("root", read("x")), s.by("root", put("x", "1")), s.by("root", read(string(NonceKey(account("root"))))),
		s.at(2, "root", read("x")), s.at(1, "alice", put("x", "1")),
		s.by("alice", put("x", "1")), s.by("alice", put("q1", "1"), put("x", "1")), s.by("alice", read("q1"), read(string(NonceKey(account("alice"))))))
	s.block("a grant to everyone lets every account send, also where it does not cover the key", "0 5 0 0 5 5",
		s.by("root", grantOp(nil, "e", 0)), s.by("dave", put("x", "1")), s.by("dave", put("e", "1")),
		s.by("root", revokeOp(nil, "e"), revokeOp(account("bob"), "b")), s.at(2, "dave", read("x")), s.at(9, "bob", read("x")))
	s.block("a delete needs the right, whether the key is there or not", "0 0 5 5 5 0 0",
		s.by("root", grantOp(account("bob"), "b", 0)), []byte("x=1"), s.by("bob", del("x")), s.by("bob", del("y")), s.by("alice", del("e")),
		s.by("bob", del("b")), s.by("root", read("x"), read("e")))
	s.block("compare-and-put: the right, then the quota, then the comparison", "5 8 7 0 7 8 7 0 8",
		s.by("alice", cas("x", "no", long)), s.by("alice", cas("q", "no", long)), s.by("alice", cas("q", "no", "1")),
		s.by("alice", cas("q", "", "1")), s.by("alice", cas("q", "", "1")), s.by("alice", cas("q", "1", long)),
		s.by("alice", cas("q", "12", "3")), s.by("alice", cas("q", "1", strings.Repeat("q", 36)), read("q")), s.by("alice", cas("q", strings.Repeat("q", 36), long)))
	s.block("of two grants with one prefix the account's own decides, whichever is wider", "0 0 8 8 0",
		s.by("root", grantOp(account("alice"), "tie", 0), grantOp(nil, "tie", 20), grantOp(account("bob"), "opp", 20), grantOp(nil, "opp", 0)),
		s.by("alice", put("tie", long)), s.by("bob", put("opp", long)), s.by("dave", put("tie1", "1")), s.by("dave", put("opp1", long)))
	s.block("the longest prefix decides, whoever's it is; quotas count what lies under the prefix, whoever wrote it", "0 0 8 8 0 8 0 0",
		s.by("root", grantOp(account("alice"), "qq", 0), grantOp(nil, "bz", 10)),
		s.by("alice", put("qq", long)), s.by("alice", put("q1", "1")), s.by("bob", put("bz", long)), s.by("bob", put("by", long)),
		s.by("bob", put("bz1", "12345")), s.by("bob", put("bz1", "1234")), s.by("alice", del("qq")))
	s.block("text: no grant covers the key, be its prefix empty, a part of it or all of it", "0 9 9 0 0 0 0 0 9 9 0 9 9 0 0 9 0 0",
		s.by("root", grantOp(account("alice"), "t", 0), grantOp(account("alice"), "sss", 0), grantOp(account("bob"), "sss", 0)),
		text("t"), text("ta"), text("s"), text("s"), text("ss"), text("st"), []byte("s:2"), text("sss"), text("ssss"),
		s.by("root", grantOp(account("carol"), "", 0)), text("x"), text("\xff"),
		s.by("root", revokeOp(account("carol"), "")), text("x"),
		text("sss"), s.by("root", revokeOp(account("bob"), "sss"), revokeOp(account("alice"), "sss"), revokeOp(account("alice"), "sss")), text("sss"))
	s.block("several grants with one prefix are counted", "0 0 9 0 9 0 0",
		s.by("root", grantOp(account("bob"), "w", 0), grantOp(nil, "w", 0)), s.by("root", grantOp(account("bob"), "w", 9), grantOp(account("bob"), "w", 9)),
		text("w"), s.by("root", revokeOp(account("bob"), "w")), text("w"), s.by("root", revokeOp(nil, "w"), revokeOp(nil, "w")), text("w"))
	s.block("only a write that lengthens the record meets the quota", "0 0 8 0 0 0 0 8 0 0",
		s.by("root", grantOp(account("alice"), "q", 5)), s.by("alice", put("q", strings.Repeat("r", 36))), s.by("alice", put("q", strings.Repeat("r", 37))),
		s.by("alice", put("q", strings.Repeat("r", 36))), s.by("alice", cas("q", strings.Repeat("r", 36), "12")), s.by("alice", put("q", "34")),
		s.by("alice", put("q", "3")), s.by("alice", put("q", "34")), s.by("alice", del("q")), s.by("alice", put("q", "1"), put("q", "2")))
	s.block("records under 00 count for no quota, those of others and of text do; what was undone counts no more", "0 0 0 8 0 5 0 8 0 8 0",
		s.by("root", grantOp(account("dave"), "", 800), grantOp(nil, "big", 0), grantOp(account("dave"), "v", 132)),
		s.by("erin", put("big", strings.Repeat("x", 300))), s.by("dave", read("big"), put("d", "1")),
		s.by("dave", put("d", strings.Repeat("d", 400))), s.by("dave", put("d", strings.Repeat("d", 150))),
		s.by("bob", put("bb", strings.Repeat("b", 150)), put("x", "1")), s.by("dave", put("d", "1")),
		// Lengths of two bytes, and of one.
		s.by("dave", put("v", strings.Repeat("v", 128))), s.by("dave", put("v", strings.Repeat("v", 127)), del("v")),
		s.by("dave", put("v"+strings.Repeat("w", 127), "1")), s.by("dave", put("v"+strings.Repeat("w", 126), "1")))
	s.block("a record takes the bytes of its lengths too: 134 and 6 of 140", "0 0 0 8 8 0",
		s.by("root", grantOp(account("alice"), "f", 140)), s.by("alice", put("f1", strings.Repeat("f", 128))), s.by("alice", put("f2", "1")),
		s.by("alice", put("f2", "12")), s.by("alice", put("f3", "1")), s.by("alice", del("f1"), put("f2", strings.Repeat("f", 127)), put("f3", "1")))
	s.block("the largest quota, the longest prefix, the longest key; grants that change nothing", "0 0 0 0",
		s.by("root", grantOp(account("alice"), strings.Repeat("p", 4062), 1<<64-1), grantOp(account("alice"), strings.Repeat("p", 4062), 1<<64-1),
			revokeOp(account("alice"), "none"), revokeOp(nil, "")),
		s.by("alice", put(strings.Repeat("p", 4096), "1")), s.by("alice", put("q", "1"), put("q", "2"), put("q", "1"), del("q"), del("q"), put("q", "2")),
		s.by("root", grantOp(account("alice"), strings.Repeat("p", 4062), 0)))
}

func powersChain(s *chainScript) {
	v := func(name string, power uint64) tx.Operation { return validatorOp(account(name), power) }
	s.block("text on a chain that is not open; an admin needs no grant, others do", "9 5 0",
		text("x"), s.at(0, "alice", read("x")), s.by("root", grantOp(nil, "x", 0)))
	s.block("no more than three validators", "10 0 11 0 11 0 11",
		s.by("alice", v("v4", 1<<63)), s.by("root", v("v3", 1)), s.by("root", v("v4", 1)), s.by("root", v("v3", 2)), s.by("root", v("v4", 1), v("v3", 0)),
		s.by("root", v("v3", 0), v("v4", 1)), s.by("root", v("v3", 5)))
	s.block("what a failed transaction did to the validators is undone", "0 5 0 11",
		s.by("root", v("v4", 0)), s.by("root", v("v3", 3), put("y", "1")), s.by("root", v("v4", 3)), s.by("root", v("v3", 3)))
	s.block("changes that cancel are not reported; what changes nothing has no event", "0 0 0",
		s.by("root", v("v1", 11), v("v1", 10)), s.by("root", v("v2", 7), v("none", 0)), s.by("root", v("v4", 0), v("v3", 1), v("v3", 0), v("v4", 4)))
	s.block("the powers' sum", "0 11 11 11 0 0",
		s.by("root", v("v4", 1<<58-17)), s.by("root", v("v4", 1<<58-16)), s.by("root", v("v2", 1<<64-1)), s.by("root", v("v2", 1<<58+1)),
		s.by("root", v("v1", 9), v("v2", 8)), s.by("root", v("v4", 1)))
	s.block("the last validator stays", "0 11 0",
		s.by("root", v("v4", 0), v("v2", 0)), s.by("root", v("v1", 0)), s.by("root", v("v4", 1), v("v1", 0)))
	s.block("the last admin stays; rights are looked up when the operation runs", "0 11 0 10 0 0 10 11 0",
		s.by("root", adminOp(account("carol"), true), adminOp(account("root"), false)), s.by("root", adminOp(account("root"), true)),
		s.by("root", adminOp(account("carol"), false)), s.by("root", adminOp(account("root"), true), grantOp(nil, "z", 0)),
		s.by("carol", adminOp(account("carol"), false), adminOp(account("root"), true)), s.by("root", read(string(AdminKey(account("root"))))),
		s.by("root", revokeOp(nil, "x")), s.by("carol", adminOp(account("carol"), true)), s.by("carol", revokeOp(nil, "x")))
	s.block("an admin that was, without a grant: no trace", "5 0", s.at(s.nonces["root"], "root", read("x")), s.by("carol", v("v4", 2)))
}

func readsChain(s *chainScript) {
	const half = ReadBudgetBytes / 2
	many := func(n int) []tx.Operation {
		operations := make([]tx.Operation, n)
		for i := range operations {
			operations[i] = read("k")
		}
		return operations
	}
	full := []tx.Operation{read("a"), read("b")}
	fails := cas("c", "no", "x")
	s.block("no text; two values of 1 MiB", "9 0 0 0", text("x"),
		s.by("alice", put("a", strings.Repeat("x", half))), s.by("alice", put("b", strings.Repeat("y", half))), s.by("alice", put("c", "1")))
	s.block("exactly 2,097,152 bytes, then one more, then none", "0 12 0 12 0", s.by("alice", full...), s.by("alice", read("c")), s.by("alice", read("k")),
		s.by("alice", put("d", "1"), read("d")), s.by("alice", put("d", "2")))
	s.block("reads of transactions that failed do not count", "7 7 0 12", s.by("alice", read("a"), fails),
		s.by("alice", append(full, fails)...), s.by("alice", full...), s.by("alice", read("c")))
	s.block("nor do those of one that failed by its reads; those of successful ones before do", "12 0 7 12 0 0",
		s.by("alice", append(full, read("c"))...), s.by("alice", read("c")), s.by("alice", read("b"), fails),
		s.by("alice", full...), s.by("alice", read("a")), s.by("alice", del("a"), del("b"), read("a"), read("c")))
	s.block("32,768 reads, then one more; reads of absent keys count, those of transactions that failed do not", "0 0 0 7 0 12 0",
		s.by("alice", many(10_000)...), s.by("alice", many(10_000)...), s.by("alice", many(10_000)...),
		s.by("alice", append(many(ReadBudget-30_000), fails)...), s.by("alice", many(ReadBudget-30_000)...), s.by("alice", read("k")),
		s.by("alice", put("d", "3")))
	s.block("each block starts with a full budget", "0", s.by("alice", read("c")))
}

func upgradesChain(s *chainScript) {
	up, cancel := tx.NewScheduleUpgrade, tx.NewCancelUpgrade
	s.block("only an admin; only the next version; only after this block, and not after the last that there can be", "10 11 11 11 11 11 11 0",
		s.by("alice", up(2, 4, "")), s.by("root", up(1, 4, "")), s.by("root", up(3, 4, "")), s.by("root", up(0, 4, "")), s.by("root", up(2, 1, "")),
		s.by("root", up(2, 1<<63-1, "")), s.by("root", cancel(2)), s.by("root", up(2, 1<<63-2, "")))
	s.block("the last one counts; what changes nothing has no event; a failed transaction takes its own back", "0 0 11 11 10",
		s.by("root", up(2, 4, "https://example.org/2")), s.by("root", up(2, 4, "https://example.org/2")), s.by("root", up(2, 9, ""), up(2, 2, "")),
		s.by("root", cancel(3)), s.by("alice", cancel(2)))
	s.block("canceled and scheduled again", "0 11 0",
		s.by("root", cancel(2)), s.by("root", cancel(2)), s.by("root", up(2, 7, ""), read("\x00u"), cancel(2), read("\x00u"), up(2, 5, "five")))
	s.block("not yet", "0", s.by("alice", put("a", "4")))
	s.block("the last block of version 1: it still executes by that, and its state is of version 2", "11 11 0",
		s.by("root", up(2, 5, "")), s.by("root", up(3, 6, "")), s.by("alice", put("a", "5"), read(string(ParamsKey()))))
	s.block("the first of version 2: the upgrade that has begun stays on record, and cannot be taken back", "11 11 0 0",
		s.by("root", cancel(2)), s.by("root", up(2, 9, "")), s.by("alice", read(string(ParamsKey())), read("\x00u")), s.by("root", up(3, 7, "seven")))
	s.block("the block itself takes it back", "0", s.by("root", cancel(3)))
	s.block("the next one, by another admin", "0 0", s.by("root", adminOp(account("carol"), false)), s.by("carol", up(3, 9, "")))
	s.block("an empty block is the last one of version 2", "")
	s.block("the first of version 3", "0", s.by("alice", put("a", "10")))
}

func signersChain(s *chainScript) {
	v := func(name string, power uint64) tx.Operation { return validatorOp(account(name), power) }
	yes := func(name string, power uint64) tx.Operation { return confirmedOp(account(name), power) }
	s.block("the first block: those of genesis count, also one that the block removes and adds again", "13 13 0 0 0 13",
		s.by("root", v("v3", 1000)), s.by("root", v("v3", 9), v("v1", 11)), s.by("root", v("v3", 8)), s.by("root", v("v1", 0), v("v3", 0)),
		s.by("root", v("v1", 10)), s.by("root", v("v1", 0), v("v3", 7)))
	s.after(signedBy("v1", "v2"), "two thirds are not enough; one part in 26 more is", "13 0 13",
		s.by("root", v("v1", 9), v("v3", 8)), s.by("root", v("v3", 8)), s.by("root", v("v3", 9)))
	mixed := abci.CommitInfo{Votes: []abci.VoteInfo{vote("v1", cmtproto.BlockIDFlagCommit), vote("v2", cmtproto.BlockIDFlagNil), vote("v3", cmtproto.BlockIDFlagAbsent)}}
	s.after(mixed, "a vote for nil counts as none; below two thirds only what lowers the part further is refused", "13 13 0 0 0 13",
		s.by("root", v("v1", 9)), s.by("root", v("v2", 8)), s.by("root", v("v2", 6)), s.by("root", v("v1", 9), v("v2", 5), v("v3", 7)),
		s.by("root", v("v1", 3), v("v2", 2), v("v3", 2)), s.by("root", v("v1", 17), v("v2", 10), v("v3", 14)))
	s.after(signedBy("v1"), "a new validator, an unchanged one, one with another power: the confirmation holds for this transaction only, whatever else it says about the key", "0 13 0 13 0",
		s.by("root", v("v1", 9), yes("v2", 10)), s.by("root", v("v1", 8)), s.by("root", v("v1", 8), yes("v3", 15), v("v3", 14)),
		s.by("root", yes("v3", 14), v("v2", 100)), s.by("root", yes("v3", 14), yes("v2", 1000)))
	s.after(signedBy("v3", "none"), "a transaction is judged at its end; one that is refused leaves its nonce only", "0 13 0",
		s.by("root", v("v3", 1), v("v1", 1000), v("v1", 8), v("v3", 14)), s.by("root", v("v3", 20), v("v2", 2000), read(string(ValidatorKey(account("v3"))))),
		s.by("root", read(string(ValidatorKey(account("v3")))), v("v2", 0), v("v1", 0)))
}
