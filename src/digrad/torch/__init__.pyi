from .batch_norm import recalibrate as recalibrate
from .checkpoint.checkpoints import Checkpoints as Checkpoints
from .launch import launch as launch
from .optimizer import DecentralizedOptimizer as DecentralizedOptimizer
from .privacy import PrivateShard as PrivateShard
from .process_network import ProcessNetwork as ProcessNetwork
from .replicas import Replicas as Replicas
from .shard import Shard as Shard
