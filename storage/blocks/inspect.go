package blocks

// Bytes is about how much room a database's keys take in files. What is in the write-ahead log only
// is not counted.
func (z *Zone) Bytes(id string) (uint64, error) {
	release, err := z.use()
	if err != nil {
		return 0, err
	}
	defer release()
	prefix := append([]byte{byte(len(id))}, id...)
	bytes, err := z.db.EstimateDiskUsage(prefix, after(prefix))
	return bytes, z.readErr(err)
}
