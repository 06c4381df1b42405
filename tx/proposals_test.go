package tx

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/hexruns"
)

// proposalVectors returns transactions of several admins.
func proposalVectors(t *testing.T) []vector {
	var all []vector
	add := func(name string, code Code, operations ...[]byte) {
		b := signedBody(t, rawBody(alice, nil, operations...))
		require.Equal(t, code, codeOf(t, b, vectorChain), name)
		all = append(all, vector{Name: name, ChainID: vectorChain, Tx: hexruns.Encode(b), Code: code})
	}
	bob := key("bob").PubKey().Bytes()
	expires := []byte{2 << 3, 9}
	admin := field(8, field(1, bob))
	propose := func(parts ...[]byte) []byte { return field(20, parts...) }
	operation := func(parts ...[]byte) []byte { return field(1, parts...) }
	approve := func(proposer []byte, digest int) []byte {
		return field(21, field(1, proposer), field(2, make([]byte, digest)))
	}
	threshold := func(n ...byte) []byte { return field(22, []byte{1 << 3}, n) }
	long := field(5, field(2, bytes.Repeat([]byte("p"), MaxPrefixBytes)))

	add("propose", CodeOK, propose(operation(admin), operation(threshold(2)), expires))
	add("propose: most operations", CodeOK, propose(bytes.Repeat(operation(admin), MaxProposalOperations), expires))
	add("propose: an operation too many", CodeTooLarge, propose(bytes.Repeat(operation(admin), MaxProposalOperations+1), expires))
	add("propose: too many bytes", CodeTooLarge, propose(bytes.Repeat(operation(long), 17), expires))
	add("propose: expires in block 0", CodeOK, propose(operation(admin)))
	add("propose: withdraw", CodeOK, propose())
	add("propose: withdraw with a height", CodeMalformed, propose(expires))
	add("propose: an empty operation", CodeMalformed, propose(operation(), expires))
	add("propose: an operation with an error", CodeMalformed, propose(operation(field(8, field(1, bob[:31]))), expires))
	add("propose: two operations in one", CodeMalformed, propose(operation(admin, threshold(1)), expires))
	add("propose: a put", CodeMalformed, propose(operation(plainPut), expires))
	add("propose: a proposal", CodeMalformed, propose(operation(propose(operation(admin), expires)), expires))
	add("propose: fields out of order", CodeMalformed, propose(expires, operation(admin)))
	add("propose: together with a put", CodeMalformed, plainPut, propose(operation(admin), expires))
	add("approve", CodeOK, approve(bob, DigestBytes))
	add("approve: a short digest", CodeMalformed, approve(bob, DigestBytes-1))
	add("approve: a long digest", CodeMalformed, approve(bob, DigestBytes+1))
	add("approve: nobody's", CodeMalformed, approve(make([]byte, AccountBytes), DigestBytes))
	add("approve: with another one", CodeMalformed, approve(bob, DigestBytes), approve(bob, DigestBytes))
	add("threshold", CodeOK, threshold(1))
	add("threshold: the highest", CodeOK, threshold(0xff, 1))
	add("threshold: too high", CodeMalformed, threshold(0x80, 2))
	add("threshold: 0", CodeMalformed, field(22))
	return all
}

// The digest of a record is that of the transaction that proposed it, and of no other.
func TestDigestOfProposals(t *testing.T) {
	proposal, err := NewPropose(9, NewSetAdmin(alice, false), NewSetThreshold(2))
	require.NoError(t, err)
	body := &Body{Account: alice, Nonce: 7, Operations: []Operation{proposal}}
	raw, err := body.Marshal()
	require.NoError(t, err)
	record := &Proposal{Nonce: 7, Propose: *proposal.GetPropose(), Approvals: [][]byte{alice}}
	digest, err := record.Digest(vectorChain, alice)
	require.NoError(t, err)
	require.Equal(t, sha256.Sum256(SignBytes(vectorChain, raw)), digest)

	for _, other := range []struct {
		chain   string
		account []byte
		change  func(*Proposal)
	}{
		{"other", alice, func(*Proposal) {}},
		{vectorChain, key("bob").PubKey().Bytes(), func(*Proposal) {}},
		{vectorChain, alice, func(p *Proposal) { p.Nonce++ }},
		{vectorChain, alice, func(p *Proposal) { p.Propose.Expires++ }},
		{vectorChain, alice, func(p *Proposal) { p.Propose.Operations = p.Propose.Operations[:1] }},
	} {
		changed := *record
		other.change(&changed)
		d, err := changed.Digest(other.chain, other.account)
		require.NoError(t, err)
		require.NotEqual(t, digest, d)
	}

	_, err = NewPropose(9, NewPut([]byte("k"), []byte("v")))
	require.ErrorContains(t, err, "operation 0 needs no admin")
}

// FuzzDecodeProposal decodes records of proposals as a node may send them.
func FuzzDecodeProposal(f *testing.F) {
	proposal, err := NewPropose(9, NewSetAdmin(alice, false), NewGrant(nil, []byte("p"), 1), NewRevoke(alice, nil),
		NewConfirmedValidator(alice, 5), NewScheduleUpgrade(2, 9, "info"), NewSetThreshold(2))
	require.NoError(f, err)
	record, err := (&Proposal{Nonce: 1, Propose: *proposal.GetPropose(), Approvals: [][]byte{alice}}).Marshal()
	require.NoError(f, err)
	f.Add(record)
	f.Add(record[:len(record)-1])
	f.Add(field(2, field(1, field(8, field(1, alice)))))
	f.Add(field(3, alice))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodeProposal(b)
		if err != nil {
			return
		}
		again, err := p.Marshal()
		require.NoError(t, err)
		same, err := DecodeProposal(again)
		require.NoError(t, err)
		require.Equal(t, p, same)
		for i := range p.Propose.Operations {
			operation := p.Propose.Operations[i].Operation()
			require.Nil(t, operation.check(NewestAppVersion))
		}
		_, err = p.Digest(vectorChain, alice)
		require.NoError(t, err)
	})
}
