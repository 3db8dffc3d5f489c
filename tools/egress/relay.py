"""Inside a sandbox: takes connections on a loopback port to the egress proxy, which listens on a unix socket.

Usage: `python3 -I -S relay.py PORT SOCKET`; says `ready` on stdout when it listens. Programs know proxies only by
host and port, and the sandbox has no other network than its own loopback.
"""

import asyncio
import sys

CHUNK = 1 << 16


async def pump(reader, writer):
    try:
        while True:
            data = await reader.read(CHUNK)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        writer.close()


async def main(port, path):
    async def relay(reader, writer):
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
        up_writer.close()
        writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
