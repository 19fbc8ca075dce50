"""An engine for tests of contract.py: calls return -1 after a while, and go on."""

import threading

from handfast import mooncake


class TransferEngine(mooncake.TransferEngine):
    def _late(self, move, *arguments):
        moving = threading.Thread(target=move, args=arguments, daemon=True)
        moving.start()
        moving.join(0.02)
        return -1 if moving.is_alive() else 0

    def batch_transfer_sync_write(self, *arguments):
        return self._late(super().batch_transfer_sync_write, *arguments)

    def batch_transfer_sync_read(self, *arguments):
        return self._late(super().batch_transfer_sync_read, *arguments)
