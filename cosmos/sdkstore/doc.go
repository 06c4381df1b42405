// Package sdkstore has only tests: they compare iavlsync and nodedb with the Cosmos SDK's
// multi-store (store/v2) on cosmos/iavl v1.2, as module cosmos/oracle does with iavl
// v1.3. App hashes are those of several stores, including empty stores and stores that an upgrade
// adds.
package sdkstore
