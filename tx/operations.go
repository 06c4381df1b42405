package tx

// NewPut writes value at key.
func NewPut(key, value []byte) Operation {
	return Operation{Op: &Operation_Put{Put: &Put{Key: key, Value: value}}}
}

// NewDelete removes key, which may be absent.
func NewDelete(key []byte) Operation {
	return Operation{Op: &Operation_Delete{Delete: &Delete{Key: key}}}
}

// NewCompareAndPut writes value at key if the key's value equals expected. An empty expected means
// that the key must be absent.
func NewCompareAndPut(key, expected, value []byte) Operation {
	return Operation{Op: &Operation_CompareAndPut{CompareAndPut: &CompareAndPut{Key: key, Expected: expected, Value: value}}}
}

// NewRead returns the value at key in the transaction's result.
func NewRead(key []byte) Operation {
	return Operation{Op: &Operation_Read{Read: &Read{Key: key}}}
}

// NewGrant lets grantee (empty: everyone) write under prefix, at most quota bytes of leaf records
// (0: no limit).
func NewGrant(grantee, prefix []byte, quota uint64) Operation {
	return Operation{Op: &Operation_Grant{Grant: &Grant{Grantee: grantee, Prefix: prefix, Quota: quota}}}
}

// NewRevoke revokes the grant with exactly this grantee and prefix.
func NewRevoke(grantee, prefix []byte) Operation {
	return Operation{Op: &Operation_Revoke{Revoke: &Revoke{Grantee: grantee, Prefix: prefix}}}
}

// NewSetValidator gives an ed25519 validator its voting power; 0 removes it.
func NewSetValidator(publicKey []byte, power uint64) Operation {
	return Operation{Op: &Operation_SetValidator{SetValidator: &SetValidator{PublicKey: publicKey, Power: power}}}
}

// NewConfirmedValidator does what NewSetValidator does, with a power above 0, and confirms that a
// node signs with this key. Without a confirmation, validators that signed the last block must keep
// more than two thirds of the power.
func NewConfirmedValidator(publicKey []byte, power uint64) Operation {
	return Operation{Op: &Operation_SetValidator{SetValidator: &SetValidator{PublicKey: publicKey, Power: power, Confirmed: true}}}
}

// NewScheduleUpgrade makes version the app version of all blocks above height. info tells operators
// where to get the program.
func NewScheduleUpgrade(version, height uint64, info string) Operation {
	return Operation{Op: &Operation_ScheduleUpgrade{ScheduleUpgrade: &ScheduleUpgrade{Version: version, Height: height, Info: info}}}
}

// NewCancelUpgrade cancels the upgrade to version, which must be scheduled and not yet begun.
func NewCancelUpgrade(version uint64) Operation { return NewScheduleUpgrade(version, 0, "") }

// NewSetAdmin makes account an admin, or removes it as an admin if remove is set.
func NewSetAdmin(account []byte, remove bool) Operation {
	return Operation{Op: &Operation_SetAdmin{SetAdmin: &SetAdmin{Account: account, Remove: remove}}}
}
